"""How long one rank waits for others at the beginning: what is wrong is said soon, who is only slow is waited for."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from fluxguard.distributed.start.environment import Place
from fluxguard.guard import pulse

logger = logging.getLogger(__name__)

_PROC = Path("/proc")
_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_ABSENT = ("Z", "X", "T", "t")  # dead, or stopped


class Patience:
    """The wait of one rank: it lasts one limit, and then another one, again and again, while the missing may come."""

    def __init__(self, place: Place, limit: float, longest: float, began: float) -> None:
        """`limit` and `longest`, all of it, in seconds; `began` monotonic."""
        self._place = place
        self._limit = limit
        self._longest = longest
        self._began = began
        self.until = began + limit
        """When it is over, as far as is known now."""
        self._longer = False

    def more(self, missing: Iterable[int]) -> float:
        """Return for how many seconds more to wait for these ranks; 0 when it makes no sense."""
        missing = tuple(missing)
        now = time.monotonic()
        left = self._began + self._longest - now
        if self._limit == math.inf or left <= 0 or not may_come(missing, self._place, seen := processes(os.environ)):
            return 0.0
        self.until = now + (longer := min(self._limit, left))
        self._longer = True
        named = ", ".join(f"{rank} (process {seen[rank]})" if rank in seen else str(rank) for rank in missing)
        logger.warning(
            "rank %d has waited %.0f s at %s and goes on for %.0f s: rank %s is on its way, but not there yet",
            *(self._place.rank, now - self._began, self._place.door, longer, named),
        )
        pulse.progress(0)
        return longer

    def complete(self) -> None:
        """Say that all have come; where some were slow, what follows gets a limit of its own."""
        if self._longer:
            self.until = time.monotonic() + self._limit


def may_come(missing: Iterable[int], place: Place, seen: Mapping[int, int]) -> bool:
    """Return whether all of these ranks may be on their way, as seen from the rank at `place`.

    Those whose process is `seen` on this machine are; and those of other machines, where a launcher has started all
    ranks at once and ends them together.
    """
    return all(rank in seen or _elsewhere(rank, place) for rank in missing)


def _elsewhere(rank: int, place: Place) -> bool:
    if not place.launched or place.local_rank is None or place.local_size is None:
        return False
    first = place.rank - place.local_rank
    return not first <= rank < first + place.local_size


def processes(environment: Mapping[str, str]) -> dict[int, int]:
    """Return the ranks of this job on this machine whose processes run, with their pids; none where none can be seen.

    They are known by what a launcher has put into their environment, before they have imported anything.
    """
    job = {name: environment.get(name, "") for name in _JOB}
    found: dict[int, int] = {}
    if not job["MASTER_PORT"] or not sys.platform.startswith("linux"):
        return found
    for name in os.listdir(_PROC):
        if name.isdigit() and (rank := _rank(_PROC / name, job)) is not None:
            found.setdefault(rank, int(name))
    return found


def _rank(process: Path, job: Mapping[str, str]) -> int | None:
    try:
        if (process / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] in _ABSENT:
            return None
        words = (process / "environ").read_bytes().decode("utf-8", "replace").split("\0")
    except (OSError, IndexError):
        return None
    its = dict(word.partition("=")[::2] for word in words)
    rank = its.get("RANK", "")
    return int(rank) if rank.isdigit() and all(its.get(name, "") == value for name, value in job.items()) else None
