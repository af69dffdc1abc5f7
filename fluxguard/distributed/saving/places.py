"""Which ranks see the same folder: on one machine or a shared disk all do; on separate disks one writes for each."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from fluxguard.distributed import world
from fluxguard.distributed.meetings import hearing, meeting

_KIND = "places"
_MARK = ".fluxguard-seen-{}-{}"

_writers: dict[tuple[str, int, int], int] = {}


def writer_of(folder: Path) -> int:
    """Return the rank that writes into `folder` as this rank sees it: the lowest one that sees the same folder.

    Found out by files that each rank leaves there for a moment; once per folder. The folder is made where it is not
    there. Raises OSError, on the other ranks RankFailed.
    """
    here = world.current()
    known = (str(folder), here.rank, here.size)
    if known not in _writers:
        _writers[known] = 0 if here.size == 1 else _look(folder, here.rank, here.size)
    if here.size == 1:
        folder.mkdir(parents=True, exist_ok=True)
    return _writers[known]


def _look(folder: Path, rank: int, size: int) -> int:
    word = meeting.meet(_KIND, "folder", payload=uuid.uuid4().hex.encode())[0].decode()
    own = folder / _MARK.format(word, rank)
    try:
        with hearing.together(_KIND):
            folder.mkdir(parents=True, exist_ok=True)
            own.touch()
        seen = [other for other in range(size) if (folder / _MARK.format(word, other)).exists()]
        meeting.meet(_KIND, "all have looked")
    finally:
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)
    return min(seen, default=rank)
