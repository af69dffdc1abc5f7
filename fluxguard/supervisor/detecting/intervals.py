"""The longest times between two signs, by phase: what a run has shown to be healthy in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_BELIEVED = 30.0
"""Seconds between the end of an interval and a later sign, after which it counts: the last beats of a training that
fails after a hang complete nothing."""


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """The completed intervals of one attempt between two signs of one kind."""

    longest: Mapping[str, float] = field(default_factory=dict)
    """By phase: seconds of the longest one that is believed."""
    fresh: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By phase: when a longer one was completed, monotonic seconds, and its own seconds; not believed yet, because the
    training has not gone on for long enough since."""
    spoiled: bool = False
    """Whether something has come between in the open one that says nothing about the training."""

    def closed(self, phase: str, seconds: float, now: float) -> Intervals:
        """Return them with one more, which was spent in `phase` and completed now."""
        known = self._believed(now)
        if self.spoiled:
            return replace(known, spoiled=False)
        before = max(known.longest.get(phase, 0.0), known.fresh.get(phase, (0.0, 0.0))[1])
        if seconds <= before:
            return known
        return replace(known, fresh={**known.fresh, phase: (now, seconds)})

    def spoil(self) -> Intervals:
        """Return them without the open one, and without those before it that are not believed yet."""
        return replace(self, fresh={}, spoiled=True)

    def _believed(self, now: float) -> Intervals:
        ripe = {phase: seconds for phase, (at, seconds) in self.fresh.items() if now - at >= _BELIEVED}
        if not ripe:
            return self
        fresh = {phase: one for phase, one in self.fresh.items() if phase not in ripe}
        return replace(self, longest={**self.longest, **ripe}, fresh=fresh)
