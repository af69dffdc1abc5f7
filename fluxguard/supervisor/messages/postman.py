"""Sends messages by Apprise: a program of its own, so that no network can reach into the supervision.

    python postman.py send|check < {"messages": [{title, body, tone}], "seconds": N}

The URLs are in FLUXGUARD_NOTIFY, never in the command line. One JSON line per URL says how it went: {url: its place in
the list, ok, why}; `why` holds nothing of the URL. After `seconds` the program ends, whatever hangs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

_VARIABLE = "FLUXGUARD_NOTIFY"
_PAUSES = (1.0, 4.0, 15.0)
"""Between two tries of one message, in seconds."""
_ANSWER = re.compile(r"\berror=(\d{3})\b")
_HOPELESS = frozenset({400, 401, 403, 404, 405, 410})
"""What asking again does not change: a wrong address, key or topic."""
NOT_A_URL = "is no URL that Apprise knows"


class Reasons(logging.Handler):
    """Keeps why the last message of a thread did not go out: the number of an answer only, the rest may be secret."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of_thread: dict[int, str] = {}
        self.hopeless: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Read one line of Apprise's log."""
        thread = record.thread or 0
        answer = _ANSWER.search(record.getMessage())
        if answer:
            self.of_thread[thread] = f"it answered {answer[1]}"
            if int(answer[1]) in _HOPELESS:
                self.hopeless.add(thread)
        elif "onnection" in record.getMessage():
            self.of_thread[thread] = "it cannot be reached, or does not answer"


def deliver(service: Any, messages: Sequence[dict[str, str]], reasons: Reasons, until: float) -> str:
    """Send messages to one service, each again until it is taken or no time is left; return why not, or nothing.

    `until` is in monotonic seconds.
    """
    me = threading.get_ident()
    for message in messages:
        for pause in (*_PAUSES, None):
            reasons.of_thread.pop(me, None)
            if _taken(service, message, reasons):
                break
            if pause is None or me in reasons.hopeless or time.monotonic() + pause > until:
                return reasons.of_thread.get(me, "it did not take the message")
            time.sleep(pause)
    return ""


def _taken(service: Any, message: dict[str, str], reasons: Reasons) -> bool:
    try:
        return bool(service.notify(title=message["title"], body=message["body"], notify_type=message["tone"]))
    except Exception as error:  # noqa: BLE001 - whatever a service does, it is one that did not take the message
        reasons.of_thread[threading.get_ident()] = type(error).__name__
        return False


def _say(number: int, why: str) -> None:
    sys.stdout.write(json.dumps({"url": number, "ok": not why, "why": why}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Check the URLs, or send what standard input holds to each of them at once."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]  # modules here have names that others may have too
    import apprise

    reasons = Reasons()
    logging.getLogger("apprise").addHandler(reasons)
    logging.getLogger("apprise").propagate = False
    asked = json.load(sys.stdin)
    lock = threading.Lock()
    until = time.monotonic() + float(asked["seconds"])

    def serve(number: int, service: Any) -> None:
        why = deliver(service, asked["messages"], reasons, until)
        with lock:
            _say(number, why)

    waiting = []
    asset = apprise.AppriseAsset(app_id="fluxguard")
    for number, url in enumerate(os.environ.get(_VARIABLE, "").split()):
        service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if service is None or sys.argv[1] == "check":
            with lock:
                _say(number, "" if service is not None else NOT_A_URL)
            continue
        waiting.append(threading.Thread(target=serve, args=(number, service), daemon=True))
        waiting[-1].start()
    for thread in waiting:
        thread.join(max(0.0, until - time.monotonic()))
    with lock:
        os._exit(0)  # a thread that hangs in a name server must not keep us


if __name__ == "__main__":
    main()
