"""Heartbeats of ranks that no supervisor watches: in memory, so that each rank of a machine sees what others do."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.guard import pulse
from fluxguard.rundir import BEATS_OF, beats_in_memory

_NOWHERE = "over"


def folder(door: str) -> Path | None:
    """Return the folder of the job whose ranks meet at `door`; None where the platform has no memory for it."""
    prefix = beats_in_memory()
    words = f"{door} {os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    return None if prefix is None else prefix.with_name(f"{prefix.name}{zlib.crc32(words.encode()):08x}")


def begin(door: str, rank: int) -> Path | None:
    """Open the heartbeat of this rank, where none is open; return the folder, or None where there is none.

    Never raises: what cannot be written costs the words about late ranks, never the training.
    """
    place = folder(door)
    if place is None or pulse.run_dir() is not None:
        return None
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        if place.stat().st_uid != os.getuid():
            return None
        # It never exists, so whatever clears the leftovers of runs that are gone takes this folder too, once all in
        # it are dead.
        (place / BEATS_OF).write_bytes(os.fsencode(place / _NOWHERE))
    except OSError:
        return None
    pulse.listen(place, rank)
    return place


def end(place: Path | None, rank: int) -> None:
    """Remove the heartbeat of this rank, and the folder with the last one."""
    if place is None:
        return
    pulse.fall_silent()
    with contextlib.suppress(OSError):
        heartbeat.path_for(place, rank).unlink(missing_ok=True)
        if not heartbeat.ranks(place):
            (place / BEATS_OF).unlink(missing_ok=True)
            place.rmdir()
