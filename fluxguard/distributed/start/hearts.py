"""Heartbeats of ranks that no supervisor watches: in memory, so that each rank of a machine sees what others do."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import time
import zlib
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.guard import pulse
from fluxguard.rundir import BEATS_OF, beats_in_memory

_NOWHERE = "over"
_MOST = 1000  # folders that are looked at
_NEW = 60.0  # seconds in which a folder may be one whose ranks have yet to write into it


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
    clear(time.time())
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


def clear(now: float) -> None:
    """Remove what jobs without a supervisor have left whose ranks were killed; `now` in seconds since 1970.

    Only folders of this user that say that they are of such a job, and whose ranks are all dead.
    """
    prefix = beats_in_memory()
    if prefix is None:
        return
    with contextlib.suppress(OSError):
        for place in itertools.islice(prefix.parent.glob(f"{prefix.name}*"), _MOST):
            if _is_left(place, now):
                shutil.rmtree(place, ignore_errors=True)


def _is_left(place: Path, now: float) -> bool:
    try:
        seen = place.lstat()
        ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and now - seen.st_mtime > _NEW
        if not ours or (place / BEATS_OF).read_bytes() != os.fsencode(place / _NOWHERE):
            return False
        beats = [heartbeat.read(heartbeat.path_for(place, rank)) for rank in heartbeat.ranks(place)]
    except OSError:
        return False
    return not any(beat is not None and _may_live(beat.pid) for beat in beats)


def _may_live(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
