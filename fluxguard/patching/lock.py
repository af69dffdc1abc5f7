"""Only one process changes a checkout at a time."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fluxguard.errors import PatchError
from fluxguard.patching.places import LOCK

_PATIENCE = 60.0
_POLL = 0.05
_UNSUPPORTED = (errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder; whoever dies lets it go. Raises PatchError when another process holds it for a minute."""
    deadline = time.monotonic() + _PATIENCE
    if sys.platform == "win32":
        import filelock

        lock = filelock.FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=_PATIENCE)
        except filelock.Timeout:
            raise _busy(folder) from None
        try:
            yield
        finally:
            lock.release()
        return
    while (descriptor := _hold(folder)) is None:
        if time.monotonic() > deadline:
            raise _busy(folder)
        time.sleep(_POLL)
    try:
        yield
    finally:
        os.close(descriptor)


def _busy(folder: Path) -> PatchError:
    return PatchError(f"{folder}: another process has been changing it for {_PATIENCE:g} s")


def _hold(folder: Path) -> int | None:
    """Lock the folder itself, so that no lock file stays in a checkout; None when somebody else holds it."""
    import fcntl

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(folder)):  # and not one that was renamed while we waited
            return held
    except BlockingIOError:
        pass
    except FileNotFoundError:
        os.close(held)
        raise
    except OSError as error:  # a file system without locks: no other process can be kept out
        if error.errno in _UNSUPPORTED:
            return held
        os.close(held)
        raise
    os.close(held)
    return None
