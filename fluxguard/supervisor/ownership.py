"""One owner per run: a lock that the system frees when its holder dies, and a note that says who holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from fluxguard.errors import RunOwned
from fluxguard.rundir import RunDir, read_json, write_json
from fluxguard.supervisor.identity import Identity


@contextmanager
def owned(run: RunDir) -> Iterator[None]:
    """Own the run for the time of the block. Raises RunOwned when another process does."""
    lock = FileLock(run.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        other = owner(run)
        raise RunOwned(run.output_dir, other.pid if other else None) from None
    try:
        me = Identity.of(os.getpid())
        write_json(run.owner, me.to_mapping() if me else {})
        yield
    finally:
        run.owner.unlink(missing_ok=True)
        lock.release()


def owner(run: RunDir) -> Identity | None:
    """Return the living supervisor of a run, or None."""
    note = read_json(run.owner)
    if note is None:
        return None
    identity = Identity.from_mapping(note)
    return identity if identity is not None and identity.alive() else None
