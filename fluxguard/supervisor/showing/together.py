"""What is shown of ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

from fluxguard.heartbeat import Beat
from fluxguard.supervisor.detecting.standing import alone, standing
from fluxguard.supervisor.sensing import fates

_WORTH_SAYING = 5.0
"""Seconds of a wait; less is how a training goes on."""


def words(beats: Sequence[Beat], now: float, *, several: bool = False) -> str:
    """Return which rank the others wait for and what it does instead, or an empty text; `now` is monotonic seconds.

    Of one machine of `several` a rank that is alone on it may wait too, or be waited for.
    """
    if len(beats) < (1 if several else 2):
        return ""
    dead, stopped = fates.of(beats)
    if len(beats) == 1:
        found = alone(beats[0], now, dead=dead, stopped=stopped)
    else:
        found = standing(beats, now, dead=dead, stopped=stopped, hung=False)
    worth = found is not None and (found.seconds >= _WORTH_SAYING or any(one.pid in dead | stopped for one in beats))
    return found.words if found is not None and worth else ""
