"""The end of a training: the final weights first, then whatever waits for a network, and that for a limited time.

Upstream finishes its trackers before the last save: a tracker that hangs there costs the whole training. Here the
finishing waits until the training is over, and a limit that passes then ends the process as well as it stands: with
everything saved and exit code 0.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from fluxguard import limits
from fluxguard.guard import kin, losses, pulse, survived, uploads, waits
from fluxguard.guard.deadlines import positive
from fluxguard.guard.watcher import Wait, watcher

logger = logging.getLogger(__name__)

_LOOK = 0.9  # how often it is looked whether the interpreter ends
_FAREWELL = 0.5  # as in every end: what is said must not delay it


class _Endings:
    def __init__(self) -> None:
        self.pending: list[Callable[[], object]] = []
        self.hooked = False
        self.exit: Wait | None = None
        self.well = False


_endings = _Endings()


def end_later(accelerator: Any) -> None:
    """End the accelerator's training (its trackers, its process group) when everything is saved.

    Done by `train_ends`, or at the exit of the interpreter when nobody calls that. In a process that is no trainer
    (a notebook, a page) it is done at once, as upstream does. With several processes each one waits for itself
    alone; the group lives longer than upstream, so a save in which all take part still finds it.
    """
    if not pulse.begun():
        accelerator.end_training()
        return
    pulse.phase("saving")
    _endings.pending.append(accelerator.end_training)
    if not _endings.hooked:
        _endings.hooked = True
        atexit.register(_at_exit)


def train_ends() -> None:
    """Say that the training has ended well and do what `end_later` put off; called once, at the entry point.

    What hangs there, or at the exit of the interpreter after it, ends the process with exit code 0 after its limit.
    """
    losses.training_ended()
    _finish(0)
    _endings.well = True


def watch_exit() -> None:
    """Bound the exit of this trainer's interpreter, which waits for all its threads; `train_begins` calls it."""
    if _endings.exit is None:
        _endings.exit = Wait("the end of the process", _LOOK, time.monotonic(), _at_the_end, False)
        watcher().open(_endings.exit)


def _at_the_end(wait: Wait) -> float:
    """Give the interpreter its time to end, from when it begins to; whoever trains twice in a process is let be.

    So are threads that go on when the main thread is over, unless the training has ended or that one has failed.
    """
    if not _exits() or not (_endings.well or _failed()):
        return _LOOK
    if wait.limit == _LOOK:
        wait.limit = positive(_time_to_end())
        return wait.limit
    _leave(wait, 1 if _failed() else 0)


def _time_to_end() -> float | None:
    known = limits.current().wait
    if waits.abandoned():  # it had its time, and an error said so
        return known.block_swap
    # Threads that upload in the background keep the interpreter as long as they need, within the limit of uploads.
    return known.upload if _threads_left() and not uploads.abandoned() else known.ending


def _exits() -> bool:
    """Return whether the interpreter has begun to exit."""
    # The main thread is marked as over before the other threads are waited for, but only after those of executors are.
    return not threading.main_thread().is_alive() or bool(getattr(threading, "_SHUTTING_DOWN", False))


def _failed() -> bool:
    """Return whether an error that nobody caught has ended the main thread: it was printed before the exit began."""
    return (getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)) is not None


def _at_exit() -> None:
    _finish(1 if _failed() else 0)


def _finish(code: int) -> None:
    pending, _endings.pending = _endings.pending, []
    if not pending:
        return
    pulse.phase("ending")
    wait = _bounded("finishing the trackers", limits.current().wait.ending, code)
    try:
        for end in pending:
            end()
    except Exception as error:  # noqa: BLE001  (it comes after the last save and costs nothing)
        logger.warning("a tracker could not be finished; everything is saved")
        survived.show(error)
    finally:
        if wait is not None:
            watcher().close(wait)


def _bounded(what: str, limit: float | None, code: int) -> Wait | None:
    seconds = positive(limit)
    if seconds == math.inf:
        return None
    # Not fatal in the watcher's sense, whose faulthandler would end the process with another code.
    wait = Wait(what, seconds, time.monotonic(), lambda due: _leave(due, code), False)
    watcher().open(wait)
    return wait


def _threads_left() -> bool:
    main = threading.main_thread()
    return any(thread is not main and not thread.daemon for thread in threading.enumerate())


def _leave(wait: Wait, code: int) -> NoReturn:
    """End the process now: everything is saved, and nobody can wait for what hangs."""
    try:
        farewell = threading.Thread(target=_say, args=(wait, code), daemon=True)
        farewell.start()
        farewell.join(_FAREWELL)
        kin.end_all()
    finally:
        os._exit(code)


def _say(wait: Wait, code: int) -> None:
    saved = "" if code else "everything is saved, so "
    line = (
        f"\nfluxguard: {wait.what} did not end within {wait.limit:g} s; {saved}"
        f"this process ends without it, with code {code}\n"
    )
    with contextlib.suppress(OSError, ValueError):
        os.write(2, line.encode())
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.dump_traceback(pulse.stacks_fd(), all_threads=True)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
