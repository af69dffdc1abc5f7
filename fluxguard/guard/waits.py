"""Waits that name themselves, give up, and cannot block the end of the interpreter."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from fluxguard import limits
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, pulse
from fluxguard.guard.idle import wait_while_working
from fluxguard.guard.watcher import awake, lost

T = TypeVar("T")

_SLICE = 0.001  # a swap that is over by then, as nearly all are, costs neither a beat nor a deadline
_SWAP = "block swap"
_CAUSES = (_SWAP, "barrier")
_jobs: list[weakref.ref[Future[Any]]] = []
"""What was given up while it ran."""


def result(
    future: Future[T],
    what: str = _SWAP,
    limit: float | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
) -> T:
    """Return what `future` returns, waiting `limit` seconds at the most (None: the limit of a block swap).

    In a trainer a passed limit ends the process: a swap that did not finish leaves weights on the wrong device, and
    the interpreter would wait for its thread at exit. Elsewhere it raises DeadlineExceeded, as an earlier
    `fail_after` does everywhere. Errors and cancellation of the job pass through. Works on any thread. For a limit of 0
    or less it raises ValueError, when it has to wait.

    With `file`, which the job reads, the limit is that of a file read: it counts from the last byte that any thread
    of the process has read, and the file is named.
    """
    try:
        return future.result(0)  # at once, because nearly every swap is over by now
    except concurrent.futures.TimeoutError as error:
        _raise_foreign(error)
        running = not future.done()
    if running and not _finished(future, min(_SLICE, deadlines.remaining())):
        if file is not None:
            wait_while_working(lambda seconds: _finished(future, seconds), what, os.fspath(file))
        else:
            _wait(future, what, limits.current().wait.block_swap if limit is None else limit)
    return future.result()


def shutdown(executor: Executor, what: str = "reading") -> None:
    """Shut an executor down as `executor.shutdown()` does: wait for all its jobs, but only while they work.

    A job whose thread has read nothing for the limit of a file read ends a trainer and raises DeadlineExceeded
    elsewhere, unless that is on its way already: then the job is not waited for a second time.
    """
    if not isinstance(executor, ThreadPoolExecutor):
        executor.shutdown()
        return
    given_up = isinstance(sys.exc_info()[1], DeadlineExceeded)
    executor.shutdown(wait=False, cancel_futures=given_up)
    if given_up:
        return
    for thread in list(executor._threads):
        _join(thread, what)


def _join(thread: threading.Thread, what: str) -> None:
    def joined(seconds: float) -> bool:
        thread.join(None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds))
        return not thread.is_alive()

    if not joined(min(_SLICE, deadlines.remaining())):
        wait_while_working(joined, what)


def _wait(future: Future[T], what: str, limit: float | None) -> None:
    cause = what if what in _CAUSES else "wait"
    seconds = deadlines.positive(limit)
    patience = math.inf if pulse.begun() else seconds
    start, slept = awake(), lost()
    with deadlines.exit_after(limit, what, cause, backed=False), _given_up(future):
        while not _finished(future, min(patience, deadlines.remaining())):
            deadlines.check()
            patience = seconds - (awake() - start) if patience < math.inf else patience
            if patience <= 0:
                hint = "its job still runs and may keep the interpreter from ending"
                raise DeadlineExceeded(what, seconds, hint, "block_swap" if cause == _SWAP else "")
    if cause == _SWAP and lost() == slept and _succeeded(future):
        pulse.completed("block_swap", awake() - start)


@contextlib.contextmanager
def _given_up(future: Future[T]) -> Iterator[None]:
    try:
        yield
    except DeadlineExceeded:
        _jobs.append(weakref.ref(future))
        raise


def abandoned() -> bool:
    """Return whether a job still runs whose result nobody waits for any more; the interpreter waits for its thread."""
    return any(not job.done() for known in list(_jobs) if (job := known()) is not None)


def _succeeded(future: Future[T]) -> bool:
    return not future.cancelled() and future.exception() is None


def _finished(future: Future[T], seconds: float) -> bool:
    """Wait for `future` without its outcome: a TimeoutError here is ours, never the job's."""
    try:
        future.exception(None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds))
    except concurrent.futures.CancelledError:
        return True
    except concurrent.futures.TimeoutError as error:
        _raise_foreign(error)
        return future.done()
    return True


def _raise_foreign(error: BaseException) -> None:
    """Raise an error that cannot say that a job still runs: one of the job's own, or of an alarm that rang meanwhile.

    Of the very type that does say so the job may have raised one as well; then it is raised where its result is taken.
    """
    if type(error) is not concurrent.futures.TimeoutError:
        raise error
