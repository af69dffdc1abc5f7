"""Files that are whole or not there: written aside under their own name, made durable, and renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fluxguard.guard import progress
from fluxguard.guard.broken import is_cache
from fluxguard.rundir import replace, sync_folder

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

PREFIX, SUFFIX = ".fluxguard-", ".partial"
"""The folder in which a file is written: hidden, and none of the names that a trainer looks for."""

_FILE_NAMES = ("file", "filename", "f")  # the keyword of numpy, safetensors and torch
_ABANDONED = 3600.0  # where no lock tells whether its writer lives: longer than any one file takes
_TRIES = 10
_WINDOWS = os.name == "nt"

_cleaned: set[str] = set()


@contextlib.contextmanager
def saved(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a temporary path of the same name; what was written there is found under `path` when the block ends.

    Until then, and after an error (which passes through), `path` is what it was before: whole, or missing. A link
    stays a link, a file keeps its permissions, and a suffix that the writer adds is kept. In a folder where nothing
    can be made, and for a device, it is `path` itself. Raises OSError.
    """
    with progress.publishing():
        target = os.path.realpath(path)
        parent, name = os.path.dirname(target), os.path.basename(path)
        if not name or _is_device(target):
            yield os.fspath(path)
            return
        _clean(parent)
        folder, lock = _folder_in(parent)
        if folder is None:
            yield os.fspath(path)
            return
        try:
            yield os.path.join(folder, name)
            _publish(folder, name, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _close(lock)
        # After a power loss a cache whose name was lost is made anew: it is not worth a second wait for the disk.
        if not is_cache(target):
            sync_folder(Path(parent))


def whole(write: F) -> F:
    """Return `write` (np.savez, torch.save, save_file, ...) made to write as `saved` does.

    Its file is its first positional argument that is a path, or the keyword that names a file; any other keyword is
    data (np.savez names arrays with them). Without a path it is called as it is.
    """

    @functools.wraps(write)
    def writes(*args: Any, **kwargs: Any) -> Any:
        given = (*enumerate(args), *((name, kwargs.get(name)) for name in _FILE_NAMES))
        place, path = next((one for one in given if isinstance(one[1], (str, os.PathLike))), (None, None))
        if path is None:
            return write(*args, **kwargs)
        with saved(path) as temporary:
            here = [temporary if number == place else value for number, value in enumerate(args)]
            there = {key: temporary if key == place else value for key, value in kwargs.items()}
            return write(*here, **there)

    return writes  # type: ignore[return-value]


def _is_device(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _publish(folder: str, name: str, target: str) -> None:
    written = os.listdir(folder)
    if not written:
        return  # the writer has nothing to say
    if name not in written:  # np.savez adds a suffix that is missing
        name = written[0]
        target = os.path.join(os.path.dirname(target), name)
    temporary = os.path.join(folder, name)
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        if not os.access(target, os.W_OK) and os.path.lexists(target):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
        mode = os.stat(target).st_mode
        if stat.S_ISREG(mode):
            os.chmod(temporary, stat.S_IMODE(mode))
    try:
        replace(temporary, Path(target))
    except PermissionError:
        if not _WINDOWS:
            raise
        _copy_over(temporary, target)


def _copy_over(finished: str, target: str) -> None:
    """Write the finished bytes into the target in place, for Windows: it renames nothing over a file that is open.

    Trainers read a cache before they write it again, and leave it open.
    """
    with open(finished, "rb") as source, open(target, "rb+") as file:
        shutil.copyfileobj(source, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _folder_in(parent: str) -> tuple[str | None, int | None]:
    """Return a new folder and the lock that says that its writer lives; no folder where none can be made."""
    for _ in range(_TRIES):
        try:
            folder = tempfile.mkdtemp(dir=parent, prefix=PREFIX, suffix=SUFFIX)
        except PermissionError:
            logger.warning("%s cannot be written to: a kill while a file in it is written leaves a part of it", parent)
            return None, None
        # Somebody who cleans up may have met it before it was locked.
        with contextlib.suppress(BlockingIOError):
            lock, _ = _lock(folder)
            if os.path.isdir(folder):
                return folder, lock
            _close(lock)
    raise FileExistsError(parent)


def _lock(folder: str) -> tuple[int | None, bool]:
    """Return an open lock and True; False instead where locks do not exist. Raises BlockingIOError when it is held."""
    try:
        import fcntl

        fd = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None, False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return None, False
    return fd, True


def _close(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _clean(parent: str) -> None:
    """Remove what writers that were killed have left in a folder; once per process and folder."""
    if parent in _cleaned:
        return
    _cleaned.add(parent)
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                _remove_abandoned(entry.path)


def _remove_abandoned(folder: str) -> None:
    lock = None
    try:
        lock, taken = _lock(folder)
        if taken or time.time() - os.stat(folder).st_mtime > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # its writer lives, or it is gone
    finally:
        _close(lock)
