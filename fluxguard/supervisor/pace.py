"""How long a step takes, by what earlier attempts of a run have shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fluxguard.supervisor.timeline import Point

_LEAST = 60.0  # seconds; over a shorter time a figure says little


def step_seconds(points: Sequence[Point]) -> float:
    """Return how long a step took in the longest stretch of one attempt, sampling and all; 0 while nobody knows."""
    longest, found = _LEAST, 0.0
    for _, stretch in groupby((point for point in points if point.phase == "step"), key=lambda point: point.attempt):
        known = list(stretch)
        seconds, steps = known[-1].at - known[0].at, known[-1].step - known[0].step
        if steps > 0 and seconds >= longest:
            longest, found = seconds, seconds / steps
    return found
