"""The end of a process: last words, stacks, workers killed, gone; and the one faulthandler timer behind it.

Ending means ending. A thread stuck in C, an executor that would be joined at exit and a stopped worker all survive
`sys.exit`; none survives this. Nothing before the exit may block it: whatever writes does so on a thread that is
given little time, and the faulthandler timer, which needs no interpreter, stands behind the whole.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import NoReturn

from fluxguard.guard import kin, pulse
from fluxguard.rundir import AGAIN, NEVER, write_json

_FAREWELL = 0.5  # what is said must not delay the end: a disk that needs longer is part of the fault
_LAST_RESORT = 1.2  # together with the tick that found the limit passed, gone within 2 s of it
_REARM = 0.1  # a timer that is off by less is left as it is


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a process is ended, and whether another attempt may pass."""

    what: str
    """The wait in plain words."""
    cause: str = "wait"
    """One of "block swap", "loader worker", "file read", "barrier", "wait"."""
    limit: float
    """Seconds it may take."""
    waited: float
    """Seconds it took."""
    again: bool = True
    """Whether another attempt may pass."""
    file: str | None = None
    """The file it was about."""
    workers: tuple[int, ...] = ()
    """The worker processes it was about."""
    samples: tuple[object, ...] = ()
    """What these were loading."""
    said: bool = False
    """Whether `what` is the whole sentence: it was no wait that failed."""


class _Timer:
    """The one faulthandler timer of this process."""

    def __init__(self) -> None:
        self.due: float | None = None
        self.hooked = False


_timer = _Timer()
_one_end = threading.Lock()


def arm(at: float) -> None:
    """Let the process end at monotonic time `at`, stacks first, even if no Python code runs any more."""
    if _timer.due is not None and abs(_timer.due - at) < _REARM:
        return
    if not _timer.hooked and hasattr(os, "register_at_fork"):
        _timer.hooked = True
        os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_drop)
    _timer.due = at
    _start()


def disarm() -> None:
    """Take `arm` back."""
    if _timer.due is not None:
        _timer.due = None
        faulthandler.cancel_dump_traceback_later()


def end_process(verdict: Verdict) -> NoReturn:
    """End this process now, whatever its threads, executors, workers and C calls are doing.

    Says why in the last words of the run, in the stacks file and in one line on standard error. The exit code is
    `rundir.AGAIN` or `rundir.NEVER`.
    """
    code = AGAIN if verdict.again else NEVER
    try:
        if _one_end.acquire(blocking=False):
            arm(time.monotonic() + _LAST_RESORT)
            # A main thread that waited for one of those killed below wakes up, and may be at its own end before us.
            atexit.register(os._exit, code)
            _say(verdict, code)
        else:
            time.sleep(_LAST_RESORT)
        # Last, because a worker's death wakes the main thread, which would then race us to another exit code.
        kin.end_all()
    finally:
        os._exit(code)


def _say(verdict: Verdict, code: int) -> None:
    """Say all that is to be said, each part on a thread of its own: a dead disk must not silence the terminal."""
    until = time.monotonic() + _FAREWELL
    threads = [
        threading.Thread(target=_write_last_words, args=(verdict,), daemon=True),
        threading.Thread(target=_farewell, args=(verdict, code), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _farewell(verdict: Verdict, code: int) -> None:
    # Each part is best effort: a closed terminal must not keep the next part from being said.
    with contextlib.suppress(OSError, ValueError):
        os.write(2, _line(verdict, code).encode())
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.dump_traceback(pulse.stacks_fd(), all_threads=True)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()


def _write_last_words(verdict: Verdict) -> None:
    run = pulse.run_dir()
    if run is None:
        return
    heart = pulse.heart()
    words = {
        "attempt": pulse.attempt(),
        "verdict": "again" if verdict.again else "never",
        "cause": verdict.cause,
        "what": verdict.what,
        "said": verdict.said,
        "limit": verdict.limit,
        "waited": round(verdict.waited, 3),
        "step": heart.step if heart else 0,
        "phase": heart.phase.decode("utf-8", "replace") if heart else "",
        "file": verdict.file,
        "workers": list(verdict.workers),
        "samples": [_plain(sample) for sample in verdict.samples],
        "time": time.time(),
    }
    with contextlib.suppress(OSError, ValueError):
        write_json(run.last_words(pulse.rank()), words)


def _line(verdict: Verdict, code: int) -> str:
    if verdict.said:
        return f"\nfluxguard: {verdict.what}; this process ends with code {code}\n"
    about = f" ({verdict.file})" if verdict.file and verdict.file not in verdict.what else ""
    workers = f"; worker process {', '.join(map(str, verdict.workers))} is stuck" if verdict.workers else ""
    if verdict.samples:
        workers += f" with the samples {', '.join(map(str, verdict.samples))}"
    chance = "another attempt may pass" if verdict.again else "another attempt would end the same"
    return (
        f"\nfluxguard: {verdict.what}{about} did not finish within {verdict.limit:g} s{workers}; "
        f"this process ends with code {code}, {chance}\n"
    )


def _plain(value: object) -> object:
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value)


def _start() -> None:
    if _timer.due is not None:
        left = min(max(_timer.due - time.monotonic(), _REARM), threading.TIMEOUT_MAX)
        try:
            faulthandler.dump_traceback_later(left, exit=True, file=pulse.stacks_fd())
        except RuntimeError:  # the system allows no more threads; the watcher, if it runs, stands alone
            _timer.due = None


# A forked child has no timer thread, and would wait for it for ever when its own interpreter ends.
def _pause() -> None:
    if _timer.due is not None:
        faulthandler.cancel_dump_traceback_later()


def _resume() -> None:
    _start()


def _drop() -> None:
    global _one_end
    _timer.due = None
    _one_end = threading.Lock()
