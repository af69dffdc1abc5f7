"""What the looks at a training add up to over time: how fast it steps, and how much a save takes. Pure, bounded."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

_WINDOW = 30
"""Steps over which a speed is judged: pictures of several sizes make single steps differ."""
_SETTLED = 2
"""Samples after a save before the disk is believed to have told all of it."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long steps take, without what comes between them."""

    recent: tuple[float, ...] = ()
    """Seconds of the last steps, oldest first."""
    best: float = 0.0
    """The lowest median of a whole window so far; 0 before the first."""
    median: float = 0.0
    """The median of the last window; 0 before it is whole."""

    def stepped(self, seconds: float, steps: int) -> Pace:
        """Return it with some more steps, which took `seconds` together."""
        count = min(steps, _WINDOW)
        recent = (*self.recent, *[seconds / steps] * count)[-_WINDOW:]
        if len(recent) < _WINDOW:
            return replace(self, recent=recent)
        median = statistics.median(recent)
        return Pace(recent=recent, best=min(self.best or median, median), median=median)

    @property
    def slowdown(self) -> float:
        """How many times as long steps take as at best; 1 until that is known."""
        return self.median / self.best if self.best else 1.0


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How much room a save takes, as the free space of the disk shows it."""

    largest: int = 0
    """Bytes; 0 until a save was seen whole."""
    before: int | None = None
    """Free bytes before the save that is being measured; None when none is."""
    samples: int = 0
    """Samples since it ended."""

    def then(self, phase: str, phase_before: str, free: int | None, *, sample: bool) -> Saving:
        """Return it after one more look, which saw `free` bytes, None for unknown."""
        if phase == "saving":
            # One save may follow another at once: then they are measured together, which is never too little.
            if phase_before != "saving" and self.before is None:
                return replace(self, before=free)
            return replace(self, samples=0) if self.samples else self
        if self.before is None or free is None or not sample:
            return self
        if self.samples < _SETTLED:
            return replace(self, samples=self.samples + 1)
        return Saving(largest=max(self.largest, self.before - free))


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How many batches one optimizer step takes."""

    waiting: int = 0
    """Batches trained since the last step."""
    most: int = 0
    """The most between two steps; 0 before the first was seen whole."""
    whole: bool = False
    """Whether the batches since the last step were all seen."""

    def trained(self, batches: int) -> Stepping:
        """Return it after some more batches without a step."""
        return replace(self, waiting=self.waiting + batches)

    def stepped(self) -> Stepping:
        """Return it after a step."""
        return Stepping(most=max(self.most, self.waiting + 1) if self.whole else self.most, whole=True)
