"""Bounded reads of cache files: broken ones are named and set aside, slow ones are waited for.

A read is bounded from its last new byte, so a slow disk is never a broken one (where the platform does not count what
a thread reads, from its start). On the main thread of a process an alarm interrupts it; elsewhere nothing can, so
there a passed limit ends the trainer. Pages of a mapped file are not read by calls: those waits are the supervisor's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, overload

from fluxguard.errors import CacheBroken, DeadlineExceeded
from fluxguard.guard import alarm, broken, deadlines, pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.progress import ThreadMoved
from fluxguard.guard.watcher import Wait, watcher

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@overload
def reads(subject: F) -> F: ...
@overload
def reads(subject: str | os.PathLike[str]) -> AbstractContextManager[None]: ...
def reads(subject: Any) -> Any:
    """Guard the reading of one cache file: `@reads` above the function that reads, or `with reads(path):`.

    The file of a function is its first argument that is a path: an existing one, or one with a suffix. Raises
    CacheBroken, and sets a cache file aside as NAME.broken, when it is proven broken; DeadlineExceeded when no new
    byte came for the limit of a file read. Other errors pass through.
    """
    if not callable(subject):
        return _Reading(os.fspath(subject))

    @functools.wraps(subject)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        path = _path_among((*args, *kwargs.values()))
        if path is None:
            return subject(*args, **kwargs)
        with _Reading(path):
            return subject(*args, **kwargs)

    return guarded


def rebuilds(subject: F) -> F:
    """Guard a function that reads a cache file when there is one, and can do without: as `reads`, and then again.

    A file proven broken is set aside and named in a warning, and the function is called once more. It finds no file
    then: a check answers that nothing is cached, and the trainer makes it anew in the same attempt. Raises as `reads`.
    """
    guarded = reads(subject)

    @functools.wraps(subject)
    def again(*args: Any, **kwargs: Any) -> Any:
        try:
            return guarded(*args, **kwargs)
        except CacheBroken as error:
            logger.warning("cache file %s", error)
        return guarded(*args, **kwargs)

    return again  # type: ignore[return-value]


def _path_among(values: tuple[Any, ...]) -> str | None:
    for value in values:
        if isinstance(value, os.PathLike) or (isinstance(value, str) and value):
            text = os.fsdecode(value)
            if os.path.splitext(text)[1] or os.path.lexists(text):
                return text
    return None


class _Reading:
    """One read of one file. An error of any kind inside only asks whether the file is broken; the file answers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._limited = _bounded(path, deadlines.limits().read)

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._limited)
            found = broken.look(self._path)
            reason = broken.why_no_file(found)
            if reason is not None:
                raise broken.set_aside(self._path, reason, found)
            stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, (CacheBroken, DeadlineExceeded)):
                self._judge(error)
        finally:
            self._limited.__exit__(kind, error, where)

    def _judge(self, error: Exception) -> None:
        missing = broken.taken_away(self._path)
        if missing is not None:
            raise missing from error
        found = broken.look(self._path)
        reason = broken.why_broken(self._path)
        if reason is not None:
            broken.let_go(error)
            raise broken.set_aside(self._path, reason, found) from error


def _bounded(path: str, limit: float | None) -> AbstractContextManager[Any]:
    if limit is None:
        return contextlib.nullcontext()
    if alarm.possible():
        return alarm.Alarm(f"reading {path}", limit, "no new byte came; the file is left as it is")
    return _FatalRead(path, limit) if pulse.begun() else contextlib.nullcontext()


class _FatalRead:
    """A read on a thread that nothing can interrupt: without a new byte for too long, it ends the trainer."""

    def __init__(self, path: str, limit: float) -> None:
        self._path = path
        self._progress = ThreadMoved(threading.get_native_id())
        self._every = alarm.tick(limit)
        now = time.monotonic()
        self._wait = Wait("file read", limit, now, self._end, True)
        self._look = Wait("file read", self._every, now, self._looks, False)

    def __enter__(self) -> None:
        watcher().open(self._wait)
        watcher().open(self._look)

    def __exit__(self, *_: object) -> None:
        watcher().close(self._look)
        watcher().close(self._wait)

    def _looks(self, _: Wait) -> float:
        if self._progress.moved():
            self._wait.at = time.monotonic() + self._wait.limit
        return self._every

    def _end(self, wait: Wait) -> None:
        end_process(
            Verdict(
                what=f"reading {self._path}",
                cause="file read",
                limit=wait.limit,
                waited=time.monotonic() - (wait.at - wait.limit),
                file=self._path,
            )
        )
