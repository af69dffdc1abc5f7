"""One owner per run: a lock that the system frees when its holder dies, and a note that says who holds it.

The note also tells of an owner on another machine, where two share a folder whose locks do not reach across.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fluxguard.errors import InputError, RunOwned
from fluxguard.limits import ELSEWHERE
from fluxguard.rundir import RunDir, read_json, write_json
from fluxguard.supervisor.sensing.identity import Identity

_log = logging.getLogger(__name__)

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC)


@contextmanager
def owned(run: RunDir) -> Iterator[None]:
    """Own the run for the time of the block. Raises RunOwned when another process does, on whichever machine."""
    lock = _acquired(run)
    try:
        if other := elsewhere(run):
            raise InputError(run.output_dir, other.words)
        me = Identity.of(os.getpid())
        write_json(run.owner, {**(me.to_mapping() if me else {}), "host": socket.gethostname()})
        try:
            yield
        finally:
            run.owner.unlink(missing_ok=True)
    finally:
        lock.release()


def _acquired(run: RunDir) -> FileLock:
    """Return the lock of a run, held; on a file system without locks one of this machine, which is said."""
    lock = FileLock(run.lock)
    try:
        with warnings.catch_warnings():
            # Its own way out is a file that outlives its owner's death.
            warnings.filterwarnings("error", message="flock not supported", category=UserWarning)
            lock.acquire(timeout=0)
    except Timeout:
        raise _owned(run) from None
    except (OSError, NotImplementedError, UserWarning) as error:
        if isinstance(error, OSError) and error.errno in _REFUSED:
            raise
        _log.warning(
            "%s: the file system has no locks (%s): other machines are only seen by what they write there, so train "
            "on one of them only",
            run.output_dir,
            error,
        )
        lock = FileLock(_of_this_machine(run))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise _owned(run) from None
    return lock


def _of_this_machine(run: RunDir) -> Path:
    user = os.getuid() if os.name != "nt" else ""
    return Path(tempfile.gettempdir()) / f"fluxguard-{user}-{zlib.crc32(str(run.root).encode()):08x}.lock"


def _owned(run: RunDir) -> RunOwned:
    other = owner(run)
    return RunOwned(run.output_dir, other.pid if other else None)


def owner(run: RunDir) -> Identity | None:
    """Return the living supervisor of a run on this machine, or None."""
    note = read_json(run.owner)
    if note is None:
        return None
    identity = Identity.from_mapping(note)
    return identity if identity is not None and identity.alive() else None


@dataclass(frozen=True)
class Elsewhere:
    """A supervisor on another machine that shares the output folder."""

    host: str
    pid: int
    silent: float
    """Seconds since its last sign."""

    @property
    def words(self) -> str:
        """Why the run cannot be owned here, and what to do."""
        return (
            f"is supervised on another machine ({self.host}, process {self.pid}; last sign {self.silent:.0f} s ago): "
            f"stop it there. When that machine is gone, this can go on {ELSEWHERE:.0f} s after its last sign"
        )


def elsewhere(run: RunDir) -> Elsewhere | None:
    """Return the supervisor on another machine that gave a sign a short while ago, or None.

    Another machine is another start of a machine under another name: after a reboot a machine keeps its name, and two
    containers share a start.
    """
    note, me = read_json(run.owner), Identity.of(os.getpid())
    identity = Identity.from_mapping(note) if note else None
    host = str(note.get("host", "")) if note else ""
    if identity is None or me is None or not host or not identity.boot or not me.boot:
        return None
    if identity.boot == me.boot or host == socket.gethostname():
        return None
    signs = [path.stat().st_mtime for path in (run.owner, run.log) if path.exists()]
    silent = min((abs(time.time() - sign) for sign in signs), default=ELSEWHERE)
    return Elsewhere(host, identity.pid, silent) if silent < ELSEWHERE else None


def sign(run: RunDir) -> None:
    """Give a sign of life, for whoever looks from another machine."""
    with contextlib.suppress(OSError):
        os.utime(run.owner)
