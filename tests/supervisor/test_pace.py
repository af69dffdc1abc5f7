"""How long a step takes, as earlier attempts have shown it."""

from __future__ import annotations

import pytest

from fluxguard.supervisor.pace import step_seconds
from fluxguard.supervisor.timeline import Point


def points(*seen: tuple[int, str, float, int]) -> list[Point]:
    """Return samples of (attempt, phase, time, step)."""
    return [Point(at=at, attempt=attempt, phase=phase, step=step) for attempt, phase, at, step in seen]


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([], 0.0),
        ([(1, "step", 0.0, 5)], 0.0),
        ([(1, "load", 0.0, 0), (1, "load", 500.0, 0)], 0.0),
        ([(1, "step", 0.0, 10), (1, "step", 300.0, 110)], 3.0),
        ([(1, "step", 0.0, 10), (1, "sampling", 100.0, 40), (1, "step", 300.0, 110)], 3.0),
        ([(1, "step", 0.0, 10), (1, "step", 20.0, 110)], 0.0),  # too short to tell
        ([(1, "step", 0.0, 10), (1, "step", 900.0, 110), (2, "step", 1000.0, 0), (2, "step", 1100.0, 100)], 9.0),
        ([(1, "step", 0.0, 10), (1, "step", 300.0, 10)], 0.0),
    ],
)
def test_the_longest_stretch_of_one_attempt_tells(seen: list[tuple[int, str, float, int]], seconds: float) -> None:
    """Sampling within it counts; the pauses between attempts, and what is too short, do not."""
    assert step_seconds(points(*seen)) == seconds
