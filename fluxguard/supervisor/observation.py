"""What the supervisor sees, and what it remembers of it: frozen values, no clock, no file, no opinion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fluxguard.heartbeat import Beat
from fluxguard.supervisor.heals import Heal
from fluxguard.supervisor.intervals import Intervals
from fluxguard.supervisor.output import Shown
from fluxguard.supervisor.processes import Usage

_BUSY = 0.05
"""Of one core: below it a process only polls, as a loop that waits for a stuck worker does."""
_MOVED = 1 << 16
"""Bytes between two samples of the I/O counters that count as a sign; less is housekeeping."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How an attempt ended."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None
    """Why it could not be started at all."""
    at: float = 0.0
    """Seconds since the epoch."""

    @property
    def unknown(self) -> bool:
        """Whether nobody saw how it ended: its keeper was gone before."""
        return self.code is None and self.signal is None and self.error is None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at a run."""

    now: float
    """Monotonic seconds."""
    exit: Exit | None
    """How the attempt ended; None while it runs."""
    beat: Beat | None
    """The last heartbeat of rank 0; None without one."""
    shown: Shown
    """What the output has shown."""
    output: int
    """Bytes of output so far."""
    spoken: bool = False
    """Whether the guard has left its last words: it ends the trainer, which its launcher may take a while to see."""
    usage: Usage | None = None
    """What its processes used; None when not sampled at this look, or not to be seen."""
    healed: tuple[Heal, ...] = ()
    """What the guard has put right in this attempt so far."""

    @property
    def phase(self) -> str:
        """The phase: the heartbeat knows it, the output suggests it."""
        return self.beat.phase if self.beat else self.shown.phase

    @property
    def planned(self) -> int:
        """Optimizer steps of the whole run; 0 until the heartbeat or the output says."""
        return (self.beat.total if self.beat else 0) or self.shown.planned

    @property
    def progress(self) -> tuple[object, ...]:
        """What changes only when the training comes nearer to its end."""
        beat = self.beat
        if beat:
            return (beat.attempt, beat.step, beat.batch, beat.epoch, beat.phase, beat.done)
        return (self.shown.bar, self.shown.count, self.shown.epoch, self.shown.saves, self.shown.phase)


@dataclass(frozen=True, kw_only=True)
class History:
    """What the looks so far add up to."""

    last: Observation
    progress_at: float
    """When the last progress or beat was seen, monotonic seconds."""
    sign_at: float
    """When the last sign of life was seen: progress, output, processor time or I/O."""
    sampled: Observation | None = None
    """The last look that saw what the processes use."""
    slowest_step: float = 0.0
    """Seconds of the slowest step seen between two steps of this attempt."""
    stepped_at: float | None = None
    woken_at: float = -math.inf
    """When the last look came late: the machine was suspended, or we were stopped."""
    progresses: Intervals = field(default_factory=Intervals)
    """The completed times between two of progress or beat."""
    signs: Intervals = field(default_factory=Intervals)
    """The completed times between two signs of life."""

    @classmethod
    def begun(cls, seen: Observation) -> History:
        """Start a history with one look."""
        return cls(last=seen, progress_at=seen.now, sign_at=seen.now)

    def then(self, seen: Observation) -> History:
        """Return the history with one more look."""
        before = self._spoiled() if _says_nothing(self.last, seen) else self
        history = replace(before, last=seen)
        moved = seen.progress != self.last.progress or _beats(seen) != _beats(self.last)
        sign = moved or seen.output != self.last.output
        if seen.usage is not None:
            sign = sign or _lives(self.sampled, seen)
            history = replace(history, sampled=seen)
        if moved:
            progresses = history.progresses.closed(self.last.phase, seen.now - self.progress_at, seen.now)
            history = replace(history, progress_at=seen.now, progresses=progresses)
        if sign:
            signs = history.signs.closed(self.last.phase, seen.now - self.sign_at, seen.now)
            history = replace(history, sign_at=seen.now, signs=signs)
        return _stepped(history, self.last, seen)

    def shifted(self, gap: float, now: float) -> History:
        """Return the history after `gap` seconds in which nobody could look: they do not count for any limit."""
        return replace(
            self._spoiled(),
            progress_at=self.progress_at + gap,
            sign_at=self.sign_at + gap,
            sampled=None,
            woken_at=now,
        )

    def _spoiled(self) -> History:
        """Return the history without the intervals that are open now: they do not say how long anything takes."""
        return replace(self, stepped_at=None, progresses=self.progresses.spoil(), signs=self.signs.spoil())

    @property
    def seen_at(self) -> float:
        """When the last beat or output was seen, monotonic seconds."""
        beat = self.last.beat
        return max(self.progress_at, beat.at) if beat and beat.at <= self.last.now else self.progress_at


def _says_nothing(before: Observation, seen: Observation) -> bool:
    """Whether an interval that holds these two looks is not how long something takes: ended, healed or stopped."""
    stopped = seen.usage is not None and bool(seen.usage.stopped)
    return seen.exit is not None or seen.spoken or stopped or len(seen.healed) != len(before.healed)


def _stepped(history: History, before: Observation, seen: Observation) -> History:
    if step_of(seen) == step_of(before):
        return history
    slowest = history.slowest_step
    # An interval that held sampling or saving says nothing about how long a step takes.
    if history.stepped_at is not None and seen.phase == before.phase == "step":
        slowest = max(slowest, seen.now - history.stepped_at)
    return replace(history, slowest_step=slowest, stepped_at=seen.now)


def step_of(seen: Observation) -> int:
    """Return the steps that this attempt shows: true ones with a heartbeat, those on the bar without."""
    return seen.beat.step if seen.beat else seen.shown.bar


def _beats(seen: Observation) -> int:
    return seen.beat.beats if seen.beat else 0


def _lives(before: Observation | None, seen: Observation) -> bool:
    if before is None or before.usage is None or seen.usage is None:
        return True
    cpu = seen.usage.cpu - before.usage.cpu
    return cpu > _BUSY * (seen.now - before.now) or seen.usage.io - before.usage.io > _MOVED
