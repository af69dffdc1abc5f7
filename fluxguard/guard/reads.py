"""Bounded reads of cache files: broken ones are named and set aside, slow ones are waited for, stuck ones made again.

A read is bounded from its last new byte, so a slow disk is never a broken one (where the platform does not count what
a thread reads, as only Linux does, from its start). How it is given up depends on where it is:

  the main thread, with POSIX signals            a signal interrupts the call (`alarm`)
  other threads, and Windows: a function         a thread of ours calls it, and is left behind (`readers`)
  other threads, and Windows: a block            nothing can; a trainer ends, elsewhere one warning says so

Pages of a mapped file are not read by calls: those waits are the supervisor's.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from stat import S_ISREG
from types import TracebackType
from typing import Any, TypeVar, overload

from fluxguard import limits
from fluxguard.errors import CacheBroken, DeadlineExceeded
from fluxguard.guard import alarm, broken, pulse, readers
from fluxguard.guard.alarm import Alarm, Fatal
from fluxguard.guard.readers import abandoned
from fluxguard.guard.watcher import awake

__all__ = ["abandoned", "reads", "rebuilds"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@overload
def reads(subject: F) -> F: ...
@overload
def reads(subject: str | os.PathLike[str]) -> AbstractContextManager[None]: ...
def reads(subject: Any) -> Any:
    """Guard the reading of one cache file: `@reads` above the function that reads, or `with reads(path):`.

    The file of a function is its first argument that is a path: an existing one, or one with a suffix. A function that
    got no new byte for the limit of a file read (`limits.current().wait.read`, in seconds awake) is called once more,
    and so opens its file again; it should do nothing but read. A block cannot be begun again, as part of it is done.

    Raises CacheBroken, and sets a cache file aside as NAME.broken, when it is proven broken; DeadlineExceeded when no
    new byte came for the limit (in both calls of a function), or when an earlier `fail_after` of this thread has
    passed. Other errors pass through.

    On the main thread that holds for both, where there are POSIX signals (not on Windows). Elsewhere a function is
    called on a daemon thread of ours, with the context variables, the gradient and inference modes of torch and the
    CUDA device of its caller; other things that belong to a thread (thread-local values, CUDA streams, autocast) are
    new there. When it is stuck twice, a trainer is ended, with the file named. A block cannot be left there at all:
    a trainer is ended, and in any other process it has no limit, of which the first one warns.
    """
    if not callable(subject):
        return _Block(os.fsdecode(subject))

    @functools.wraps(subject)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else None
        if type(path) is not str or not path.endswith(broken.CACHES):  # as nearly all are: a read is little more
            path = _path_among(args, kwargs)
            if path is None:
                return subject(*args, **kwargs)
        return _bounded(path, _read, (path, subject, args, kwargs))

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


def _path_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, str) or isinstance(value, os.PathLike):  # noqa: SIM101 - in this order it is faster
            text = value if isinstance(value, str) else os.fsdecode(value)
            if text.endswith(broken.CACHES) or os.path.splitext(text)[1] or (text and _exists(text)):
                return text
    return None


def _exists(path: str) -> bool:
    """Return whether something lies under a name; even to ask for that may block on a mount that is gone."""
    return bool(_bounded(path, os.path.lexists, (path,)))


def _read(path: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = broken.look(path)
    if found is not None and not S_ISREG(found.st_mode):
        _refuse(path, found)
    try:
        return function(*args, **kwargs)
    except (CacheBroken, DeadlineExceeded):
        raise
    except Exception as error:
        _judge(path, error)
        raise


def _refuse(path: str, found: os.stat_result | None) -> None:
    """Raise CacheBroken for what is no regular file: its open alone may block for ever."""
    reason = broken.why_no_file(found)
    if reason is not None:
        raise broken.set_aside(path, reason, found)


def _judge(path: str, error: Exception) -> None:
    """Raise CacheBroken when the file is broken: an error of any kind only asks for that, and the file answers.

    A limit that has passed asks for nothing, whatever was made of it: zipfile calls it a bad file. It is raised again.
    """
    passed: BaseException | None = error
    while passed is not None:
        if alarm.rang(passed):
            raise passed
        passed = passed.__context__
    missing = broken.taken_away(path)
    if missing is not None:
        raise missing from error
    found = broken.look(path)
    reason = broken.why_broken(path)
    if reason is not None:
        broken.let_go(error)
        raise broken.set_aside(path, reason, found) from error


def _bounded(path: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return what `call(*args)` returns, with the limit of a file read in whichever way this thread allows."""
    limit = limits.current().wait.read
    if limit is None:
        return call(*args)
    if not alarm.possible():
        return _elsewhere(path, limit, call, args)
    first = Alarm(path, limit)
    try:
        first.open()
        value = call(*args)
    except DeadlineExceeded as error:
        if not first.raised(error):
            raise
    else:
        if first.counted is not None:
            first.completed()
        return value
    finally:
        first.close()
    # Out here, where the error is gone, and with it the frames that hold the file open.
    return _again(first, call, args)


def _again(first: Alarm, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    second = Alarm(first.path, first.limit, last=True)
    try:
        second.open()
        value = call(*args)
    finally:
        second.close()
    readers.tell_again(first.path, first.limit, awake() - first.began)
    return value


def _elsewhere(path: str, limit: float, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    desk = readers.own_desk()
    if desk is not None:
        return desk.named(path, call, args)
    try:
        return readers.aside(path, limit, call, args)
    except readers.NoReader as error:
        logger.warning("reading %s without a thread of its own: %s", path, error)
    with _Block(path, checked=True):
        return call(*args)


class _Block:
    """A read whose body is somebody's block."""

    def __init__(self, path: str, *, checked: bool = False) -> None:
        self._path = path
        self._checked = checked
        self._watched: list[Alarm | Fatal | None] = []

    def __enter__(self) -> None:
        watched = _watched(self._path, limits.current().wait.read)
        try:
            if watched is not None:
                watched.open()
            if not self._checked:
                _refuse(self._path, broken.look(self._path))
        except BaseException:
            if watched is not None:
                watched.close()
            raise
        self._watched.append(watched)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        watched = self._watched.pop()
        try:
            if error is None:
                if watched is not None:
                    watched.completed()
            elif isinstance(error, Exception) and not isinstance(error, (CacheBroken, DeadlineExceeded)):
                _judge(self._path, error)
        finally:
            if watched is not None:
                watched.close()


alarm.leaving.add(_Block.__exit__.__code__)


def _watched(path: str, limit: float | None) -> Alarm | Fatal | None:
    """Return what watches a read on this thread; None where somebody else does, or nothing can."""
    if limit is None or readers.own_desk() is not None:
        return None
    if alarm.possible():
        return Alarm(path, limit)
    if pulse.begun():
        return Fatal(path, limit)
    if not _said.no_limit:
        _said.no_limit = True
        logger.warning(
            "reading %s has no limit: nothing interrupts a block on this thread; a function under fluxguard.reads has "
            "one (said once)",
            path,
        )
    return None


class _Said:
    no_limit = False


_said = _Said()
