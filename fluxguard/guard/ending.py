"""The end of a process: last words, stacks, children killed, gone; and the one faulthandler timer behind it.

Ending means ending. A thread stuck in C, an executor that would be joined at exit and a stopped worker all survive
`sys.exit`; none survives this. Nothing before the exit may block it: whatever writes does so on a thread that is
given little time, and the faulthandler timer, which needs no interpreter, stands behind the whole.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fluxguard.guard import pulse
from fluxguard.rundir import AGAIN, NEVER, write_json

_FAREWELL = 0.5  # what is said must not delay the end: a disk that needs longer is part of the fault
_LAST_RESORT = 1.2  # together with the tick that found the limit passed, gone within 2 s of it
_REARM = 0.1  # a timer that is off by less is left as it is

_COMMAND = "cmdline"


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
            farewell = threading.Thread(target=_farewell, args=(verdict, code), daemon=True)
            farewell.start()
            farewell.join(_FAREWELL)
        else:
            time.sleep(_LAST_RESORT)
        # Last, because a worker's death wakes the main thread, which would then race us to another exit code.
        kill_children()
    finally:
        os._exit(code)


def kill_children() -> None:
    """Kill the worker processes of this process; stopped ones too."""
    kill = getattr(signal, "SIGKILL", signal.SIGTERM)
    for pid in _children():
        with contextlib.suppress(OSError):
            os.kill(pid, kill)


def _farewell(verdict: Verdict, code: int) -> None:
    # Each part is best effort: a full disk must not keep the next part from being said.
    with contextlib.suppress(OSError, ValueError):
        _write_last_words(verdict)
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
        "limit": verdict.limit,
        "waited": round(verdict.waited, 3),
        "step": heart.step if heart else 0,
        "phase": heart.phase.decode("utf-8", "replace") if heart else "",
        "file": verdict.file,
        "workers": list(verdict.workers),
        "samples": [_plain(sample) for sample in verdict.samples],
        "time": time.time(),
    }
    write_json(run.last_words(pulse.rank()), words)


def _line(verdict: Verdict, code: int) -> str:
    if verdict.said:
        return f"\nfluxguard: {verdict.what}; this process ends with code {code}\n"
    about = f" ({verdict.file})" if verdict.file else ""
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


def _children() -> set[int]:
    pids: set[int] = set()
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        pids.update(child.pid for child in multiprocessing.active_children() if child.pid)
    if sys.platform.startswith("linux"):
        own = _command("self")
        for path in Path("/proc/self/task").glob("*/children"):
            with contextlib.suppress(OSError, ValueError):
                pids.update(pid for pid in map(int, path.read_text().split()) if _is_worker(_command(pid), own))
    return pids


def _is_worker(command: bytes, own: bytes) -> bool:
    """Tell workers (forked copies of us, or spawned ones) from other children, which clean up after themselves."""
    return command == own or b"multiprocessing.spawn" in command or b"multiprocessing.forkserver" in command


def _command(pid: int | str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{_COMMAND}").read_bytes()
    except OSError:
        return b"\0"


def _start() -> None:
    if _timer.due is not None:
        left = max(_timer.due - time.monotonic(), _REARM)
        faulthandler.dump_traceback_later(left, exit=True, file=pulse.stacks_fd())


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
