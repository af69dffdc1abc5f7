"""Bounded reads of cache files, and the proof that a file is broken.

A read is bounded from its last new byte, so a slow disk is never a broken one. On the main thread of a process an
alarm interrupts it; elsewhere nothing can, so there a passed limit ends the trainer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, overload

from fluxguard.errors import CacheBroken, DeadlineExceeded
from fluxguard.guard import alarm, deadlines, pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.progress import ThreadReads
from fluxguard.guard.watcher import Wait, watcher

F = TypeVar("F", bound=Callable[..., Any])

_CACHES = (".npz", ".npy")
"""What a trainer wrote itself and writes again when it is gone; nothing else is ever set aside."""

_MAGIC = b"\x93NUMPY"
_SUSPICIOUS = (zipfile.BadZipFile, EOFError, zlib.error, struct.error, ValueError, OSError, NotImplementedError)
_CHUNK = 1 << 20


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
        return _reading(os.fspath(subject))

    @functools.wraps(subject)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        path = _path_among((*args, *kwargs.values()))
        if path is None:
            return subject(*args, **kwargs)
        with _reading(path):
            return subject(*args, **kwargs)

    return guarded


def _path_among(values: tuple[Any, ...]) -> str | None:
    for value in values:
        if isinstance(value, os.PathLike) or (isinstance(value, str) and value):
            text = os.fsdecode(value)
            if os.path.splitext(text)[1] or os.path.lexists(text):
                return text
    return None


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    limit = deadlines.limits().read
    with _bounded(path, limit):
        _refuse_what_is_no_file(path)
        try:
            yield
        except CacheBroken:
            raise
        except DeadlineExceeded:
            raise
        except _SUSPICIOUS as error:
            reason = _why_broken(path)
            if reason is None:
                raise
            raise _set_aside(path, reason) from error


def _refuse_what_is_no_file(path: str) -> None:
    """Raise CacheBroken for a FIFO, a device or a folder, without opening it: that alone may block for ever."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # missing, or out of reach: the reader says so in its own words
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise _set_aside(path, f"is {kind}, not a regular file")


def _why_broken(path: str) -> str | None:
    """Return what is proven to be wrong with a cache file, or None; an error while reading proves nothing by itself."""
    suffix = os.path.splitext(path)[1].lower()
    try:
        if suffix == ".npz":
            return _why_archive_broken(path)
        if suffix == ".npy":
            with open(path, "rb") as file:
                return None if file.read(len(_MAGIC)) == _MAGIC else "is not a numpy array"
    except OSError:
        return None
    return None


def _why_archive_broken(path: str) -> str | None:
    if not os.path.getsize(path):
        return "is empty"
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    if member.read(len(_MAGIC)) != _MAGIC:
                        return f"its member {name} is not a numpy array"
                    while member.read(_CHUNK):
                        pass
    except zipfile.BadZipFile as error:
        return f"is truncated or damaged ({error})"
    except (EOFError, zlib.error, struct.error, ValueError, NotImplementedError, RuntimeError) as error:
        return f"is damaged ({type(error).__name__}: {error})"
    return None


def _set_aside(path: str, reason: str) -> CacheBroken:
    """Rename a broken cache file out of the way, so that the next attempt makes it anew; return the error to raise."""
    if os.path.splitext(path)[1].lower() not in _CACHES or os.path.isdir(path):
        return CacheBroken(path, reason)
    aside = f"{path}.broken"
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = f"{path}.broken.{number}"
    try:
        os.rename(path, aside)
    except OSError as error:
        return CacheBroken(path, f"{reason}; it could not be set aside ({error.strerror}), remove it by hand")
    return CacheBroken(path, f"{reason}; set aside as {Path(aside).name}, the next attempt makes it anew")


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
        self._progress = ThreadReads(threading.get_native_id())
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
