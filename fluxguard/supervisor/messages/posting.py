"""Telling people by messages: the edge between a supervision and the network, which may hang as it likes.

The supervision only puts an event into a queue. A thread decides what is told; each message is sent by a process of its
own, which ends itself after `limits.NOTIFY_SEND`, also when the supervisor is gone. The URLs travel in the environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.errors import InputError
from fluxguard.limits import NOTIFY_LAST, NOTIFY_SEND
from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor import timeline
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.messages import notifying
from fluxguard.supervisor.messages.notifying import About, Message, Sieve
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.eta import pace_of

_log = logging.getLogger(__name__)

_POSTMAN = Path(__file__).with_name("postman.py")
_AFTER = 5.0
"""How long after its own bound a process that sends is waited for before it is killed."""
_LOOK = 1.0
_GATHER = 0.1
"""Events that come together, as an incident and what is decided on it, are sent together."""
_ENOUGH_SAMPLES = 1 << 18
"""Bytes: some hours of a training."""
_MOST_AT_ONCE = 4
"""Processes that send: a network that is down must not fill the machine with them."""
_HAND_ON = 2.0
"""How long a supervisor that leaves waits until what it has to say is with the process that sends it."""


@dataclass(frozen=True)
class Result:
    """How a message went to one service."""

    url: str
    ok: bool
    why: str


def check(urls: Sequence[str]) -> None:
    """Make sure that each URL is one that Apprise knows. Raises InputError, which shows nothing secret of it."""
    if importlib.util.find_spec("apprise") is None:
        raise InputError(notifying.OPTION, "needs Apprise, which is not installed here: pip install apprise")
    for result in _sent(_start(urls, [], "check", NOTIFY_LAST), urls, NOTIFY_LAST):
        if not result.ok:
            raise InputError(notifying.OPTION, f"{result.why} (see docs/notify.md)", notifying.shown(result.url))


def send(urls: Sequence[str], messages: Sequence[Message], seconds: float = NOTIFY_SEND) -> list[Result]:
    """Send messages to every URL, and wait for that; what does not take them within `seconds` is said to be so."""
    return _sent(_start(urls, messages, "send", seconds), urls, seconds)


def _start(urls: Sequence[str], messages: Sequence[Message], verb: str, seconds: float) -> subprocess.Popen[str]:
    """Start the process that sends; it has all it needs when this returns. Raises OSError."""
    process = subprocess.Popen(
        [sys.executable, *(["-I"] if sys.flags.isolated else []), str(_POSTMAN), verb],
        env={**os.environ, notifying.VARIABLE: " ".join(urls), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # whatever a library says there may hold a URL
        encoding="utf-8",
        start_new_session=os.name != "nt",
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"messages": [asdict(one) for one in messages], "seconds": seconds}))
        process.stdin.close()
    return process


def _sent(process: subprocess.Popen[str], urls: Sequence[str], seconds: float) -> list[Result]:
    """Wait for the process that sends; return how it went, in the order of the URLs."""
    timer = threading.Timer(seconds + _AFTER, process.kill)
    timer.daemon = True
    timer.start()
    assert process.stdout is not None
    with process.stdout:
        said = [_answer(line) for line in process.stdout]
    process.wait()
    timer.cancel()
    results = {one["url"]: Result(urls[one["url"]], bool(one["ok"]), str(one["why"])) for one in said if one}
    silent = f"no answer within {seconds:.0f} s" if process.returncode == 0 else "the process that sends failed"
    return [results.get(number, Result(url, False, silent)) for number, url in enumerate(urls)]


def _answer(line: str) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("url"), int) else None


class Postbox:
    """A listener of a ledger that tells people; nothing that happens to a message reaches whoever calls it.

    A context that begins the work, and hands on what is left to be sent when it ends.
    """

    def __init__(
        self,
        run: RunDir,
        urls: Sequence[str],
        clock: Clock,
        *,
        level: str = notifying.DEFAULT_LEVEL,
        secrets: frozenset[str] = frozenset(),
    ) -> None:
        self._run = run
        self._urls = tuple(urls)
        self._clock = clock
        self._secrets = secrets | _secret_parts(urls)
        self._sieve = Sieve(level=level)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._sending: list[threading.Thread] = []
        self._sorter = threading.Thread(target=self._sort, name="postbox", daemon=True)

    def __enter__(self) -> Postbox:
        if self._urls:
            self._sorter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close(_HAND_ON)

    def tell(self, event: Event) -> None:
        """Take an event; whether and what is told of it is decided elsewhere."""
        if self._urls:
            self._events.put(event)

    def close(self, longest: float = NOTIFY_LAST) -> None:
        """Wait for what is being sent, `longest` seconds at most; what is then still under way goes on without us."""
        if not self._sorter.is_alive():
            return
        self._events.put(None)
        until = self._clock.monotonic() + longest
        self._sorter.join(longest)
        for thread in self._sending:
            thread.join(max(0.0, until - self._clock.monotonic()))
        if any(thread.is_alive() for thread in self._sending):
            _log.warning("a notification is still on its way after %.0f s; it is not waited for any longer", longest)

    def _sort(self) -> None:
        going_on = True
        while going_on:
            events = self._gathered()
            going_on = None not in events
            try:
                self._sift([event for event in events if event is not None], ends=not going_on)
            except Exception as error:  # noqa: BLE001 - our own failure costs a message, never the supervision
                _log.warning("a notification was lost (%s)", type(error).__name__)

    def _gathered(self) -> list[Event | None]:
        """Return the next events, those that come together at once; none when what was held back is due before."""
        at = notifying.due_at(self._sieve)
        try:
            events = [self._events.get(timeout=None if at is None else max(_LOOK, at - self._clock.wall()))]
        except queue.Empty:
            return []
        self._clock.sleep(_GATHER)
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def _sift(self, events: Sequence[Event], *, ends: bool) -> None:
        drafts = []
        for event in events:
            self._sieve, draft = notifying.sift(self._sieve, event)
            drafts.append(draft)
        self._sieve, draft = notifying.due(self._sieve, math.inf if ends else self._clock.wall())
        messages = [notifying.written(draft, self._about()) for draft in [*drafts, draft] if draft is not None]
        if messages:
            self._post(messages)

    def _about(self) -> About:
        return replace(about(self._run), secrets=self._secrets)

    def _post(self, messages: Sequence[Message]) -> None:
        self._sending = [thread for thread in self._sending if thread.is_alive()]
        if len(self._sending) >= _MOST_AT_ONCE:
            _log.warning("%d notifications were lost: earlier ones are still on their way", len(messages))
            return
        process = _start(self._urls, messages, "send", NOTIFY_SEND)
        self._sending.append(threading.Thread(target=self._wait, args=(process,), daemon=True))
        self._sending[-1].start()

    def _wait(self, process: subprocess.Popen[str]) -> None:
        for result in _sent(process, self._urls, NOTIFY_SEND):
            if not result.ok:
                _log.warning("no notification by %s: %s", notifying.shown(result.url), result.why)


def about(run: RunDir) -> About:
    """Return what a message may say of a run, from its files."""
    events = ledgers.read(run.ledger)
    plan = ledgers.newest(events, "plan")
    planned = int(plan.values["planned_steps"]) if plan else 0
    seen = None if planned else status.read(run)  # of a trainer that is not known the output says it
    planned = planned or (seen and seen.planned_steps) or 0
    return About(
        name=run.output_dir.name,
        output_dir=str(run.output_dir),
        planned=planned,
        reached=seen.step if seen else 0,
        eta=pace_of(_recent(run)).eta(planned),
        heals=sum(event.kind == "healed" for event in events),
        incidents=sum(event.kind == "incident" for event in events),
    )


def _recent(run: RunDir) -> list[timeline.Point]:
    """Return the last samples of a run: all of a long one would cost the supervisor more memory than it has use for."""
    try:
        with run.timeline.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ENOUGH_SAMPLES))
            return timeline.parsed(file.read())  # the first line is a part of one, and passed over
    except OSError:
        return []


def was_told(run: RunDir) -> bool:
    """Return whether the supervisor that began or resumed a run last told people of it."""
    job = ledgers.newest(ledgers.read(run.ledger), "job")
    return bool(job and job.values.get("notifies"))


_SHORTEST_SECRET = 8


def _secret_parts(urls: Sequence[str]) -> frozenset[str]:
    """Return what must not stand in a message about a run, should one of its lines hold a URL of ours."""
    return frozenset(part for url in urls for part in (url, url.partition("://")[2]) if len(part) >= _SHORTEST_SECRET)
