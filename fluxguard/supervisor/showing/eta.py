"""How fast a training goes and how long it still takes, from the samples of its timeline. Pure.

The trainer's own estimate counts its loading and whatever its bar was restored with. Here a step takes what it took in
this attempt: pieces of at least eight changes of the step number, so that sampling now and then is no error, and the
middle one of them, so that a suspended machine is none either. Sampling and saving are added at the rate seen so far.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

_PIECE = 8
"""Changes of the step number in one piece: a sample comes up to one interval late, which is then an eighth at most."""
_OUT_OF_STEP = frozenset({"sampling", "saving", "validation", "on main", "upload"})


class Sample(Protocol):
    """What is needed of a point of the timeline."""

    @property
    def at(self) -> float: ...
    @property
    def attempt(self) -> object: ...
    @property
    def phase(self) -> str: ...
    @property
    def step(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long things take in the newest attempt, in seconds; None while nothing can be said."""

    step: int = 0
    """Where the training was at the last sample."""
    now: float | None = None
    """A step, lately."""
    usual: float | None = None
    """A step, in the middle."""
    besides: float = 0.0
    """What sampling, saving and validation add to each step."""
    slowest: float | None = None
    """The longest time between two changes of the step number."""
    moved_at: float | None = None
    """When step or phase changed last, seconds since the epoch."""

    def eta(self, planned: int) -> float | None:
        """Return the seconds to the end of `planned` steps; None when that is not known."""
        if not planned or self.usual is None:
            return None
        return max(0, planned - self.step) * (self.usual + self.besides)


def pace_of(samples: Sequence[Sample]) -> Pace:
    """Return the pace of the attempt that the last sample is of."""
    if not samples:
        return Pace()
    mine = [one for one in samples if one.attempt == samples[-1].attempt]
    changes = list(_changes(mine))
    times = [piece for stretch in _stretches(changes) for piece in _pieces(stretch)]
    gaps = [b.at - a.at for stretch in _stretches(changes) for a, b in pairwise(stretch)]
    steps = mine[-1].step - mine[0].step
    return Pace(
        step=mine[-1].step,
        now=times[-1] if times else None,
        usual=statistics.median_low(times) if times else None,
        besides=_besides(mine) / steps if steps > 0 else 0.0,
        slowest=max(gaps, default=None),
        moved_at=_moved_at(mine),
    )


def _changes(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the samples that show a new step number, and those that leave the phase of stepping."""
    for before, one in pairwise(samples):
        if one.step != before.step or (one.phase != before.phase and "step" in (one.phase, before.phase)):
            yield one


def _stretches(changes: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Yield runs of changes within the phase of stepping."""
    stretch: list[Sample] = []
    for one in changes:
        if one.phase == "step" and (not stretch or one.step > stretch[-1].step):
            stretch.append(one)
            continue
        if len(stretch) > 1:
            yield stretch
        stretch = []
    if len(stretch) > 1:
        yield stretch


def _pieces(stretch: Sequence[Sample]) -> Iterator[float]:
    """Yield seconds for a step, from pieces of a stretch; a short last piece joins the one before it."""
    last = len(stretch) - 1
    edges = list(range(0, last, _PIECE))
    if len(edges) > 1 and last - edges[-1] < _PIECE:
        edges.pop()
    for begin, end in pairwise([*edges, last]):
        yield (stretch[end].at - stretch[begin].at) / (stretch[end].step - stretch[begin].step)


def _besides(samples: Sequence[Sample]) -> float:
    return sum(b.at - a.at for a, b in pairwise(samples) if a.phase in _OUT_OF_STEP)


def _moved_at(samples: Sequence[Sample]) -> float:
    moved = samples[0].at
    for before, one in pairwise(samples):
        if (one.step, one.phase) != (before.step, before.phase):
            moved = one.at
    return moved
