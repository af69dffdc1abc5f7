"""Waits that name themselves, give up, and cannot block the end of the interpreter."""

from __future__ import annotations

import concurrent.futures
import math
import time
from concurrent.futures import Future
from typing import TypeVar

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, pulse

T = TypeVar("T")

_SLICE = 0.001  # a swap that is over by then, as nearly all are, costs neither a beat nor a deadline
_CAUSES = ("block swap", "barrier")


def result(future: Future[T], what: str = "block swap", limit: float | None = None) -> T:
    """Return what `future` returns, waiting `limit` seconds at the most (None: the limit of a block swap).

    In a trainer a passed limit ends the process: a swap that did not finish leaves weights on the wrong device, and
    the interpreter would wait for its thread at exit. Elsewhere it raises DeadlineExceeded, as an earlier
    `fail_after` does everywhere. Errors and cancellation of the job pass through. Works on any thread.
    """
    if not future.done() and not _finished(future, min(_SLICE, deadlines.remaining())):
        _wait(future, what, deadlines.limits().block_swap if limit is None else limit)
    return future.result()


def _wait(future: Future[T], what: str, limit: float | None) -> None:
    cause = what if what in _CAUSES else "wait"
    seconds = deadlines.positive(limit)
    patience = math.inf if pulse.begun() else seconds
    start = time.monotonic()
    with deadlines.exit_after(limit, what, cause, backed=False):
        while not _finished(future, min(patience, deadlines.remaining())):
            deadlines.check()
            patience = seconds - (time.monotonic() - start) if patience < math.inf else patience
            if patience <= 0:
                raise DeadlineExceeded(what, seconds, "its job still runs and may keep the interpreter from ending")


def _finished(future: Future[T], seconds: float) -> bool:
    """Wait for `future` without its outcome: a TimeoutError here is ours, never the job's."""
    try:
        future.exception(None if seconds == math.inf else max(0.0, seconds))
    except concurrent.futures.CancelledError:
        return True
    except concurrent.futures.TimeoutError:
        return future.done()
    return True
