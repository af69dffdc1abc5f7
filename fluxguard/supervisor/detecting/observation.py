"""What the supervisor sees, and what it remembers of it: frozen values, no clock, no file, no opinion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from fluxguard.heartbeat import Beat
from fluxguard.supervisor.detecting.intervals import Intervals
from fluxguard.supervisor.detecting.patterns import NOTHING, LogWatch, Matches, Pattern
from fluxguard.supervisor.detecting.trends import Pace, Saving, Stepping
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.heals import Heal
from fluxguard.supervisor.sensing.host import Host
from fluxguard.supervisor.sensing.output import Shown
from fluxguard.supervisor.sensing.processes import Usage

_BUSY = 0.05
"""Of one core: below it a process only polls, as a loop that waits for a stuck worker does."""
_SAMPLES = 8
"""Sampled looks that are remembered: about two minutes of a training that steps."""
BETWEEN = "accelerator"
"""The phase between two rounds: the ranks have to find each other again."""
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
    """The last heartbeat of the lowest rank of this machine; None without one."""
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
    ranks: tuple[Beat, ...] = ()
    """The last heartbeats of all ranks of this machine, by rank."""
    gpus: tuple[Card, ...] | None = None
    """The NVIDIA cards; None when unknown."""
    xids: tuple[str, ...] = ()
    """Critical faults that the driver has reported since the attempt is looked at, in words."""
    host: Host | None = None
    """The memory of the machine; None when it was not sampled at this look."""
    disk_free: int | None = None
    """Bytes free in the output folder; None when unknown."""
    silent: tuple[str, ...] = ()
    """What did not answer in time: the GPU's driver, the disk."""
    patterns: tuple[Pattern, ...] = ()
    """The log patterns of the user's own."""
    matches: Matches = NOTHING
    """What the lines of this look have shown of them."""
    unread: int = 0
    """Bytes of output that were passed over so far."""
    between: bool = False
    """Whether the ranks of one round are gone, and their agent has yet to start the next one."""

    @property
    def phase(self) -> str:
        """The phase: the heartbeat knows it, the output suggests it."""
        if self.between:
            return BETWEEN
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
            # A rank that others wait for is progress too: each may cache for hours what is its own.
            others = tuple(_progress(one) for one in self.ranks[1:])
            return (beat.attempt, *_progress(beat), *others)
        shown = self.shown
        # Many trainers that are not known print a loss and no step that we understand; one that repeats is no progress.
        loss = shown.loss if not shown.known and shown.loss is not None and math.isfinite(shown.loss) else None
        return (shown.bar, shown.count, shown.epoch, shown.saves, shown.phase, loss)


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
    unbroken: bool = False
    """Whether nothing but the step itself was seen since then."""
    woken_at: float = -math.inf
    """When the last look came late: the machine was suspended, or we were stopped."""
    progresses: Intervals = field(default_factory=Intervals)
    """The completed times between two of progress or beat."""
    signs: Intervals = field(default_factory=Intervals)
    """The completed times between two signs of life."""
    samples: tuple[Observation, ...] = ()
    """The last looks that sampled, oldest first."""
    pace: Pace = field(default_factory=Pace)
    saving: Saving = field(default_factory=Saving)
    stepping: Stepping = field(default_factory=Stepping)
    log: LogWatch = field(default_factory=LogWatch)
    """What the output has shown of the user's own patterns."""

    @classmethod
    def begun(cls, seen: Observation) -> History:
        """Start a history with one look."""
        log = _log_after(LogWatch(patterns=seen.patterns, begun=seen.now), 0, seen)
        return cls(last=seen, progress_at=seen.now, sign_at=seen.now, log=log)

    def then(self, seen: Observation) -> History:
        """Return the history with one more look."""
        before = self._spoiled() if _says_nothing(self.last, seen) else self
        changes: dict[str, Any] = {"last": seen}
        moved = seen.progress != self.last.progress or _beats(seen) != _beats(self.last)
        sign = moved or seen.output != self.last.output or _all_beats(seen) != _all_beats(self.last)
        if seen.usage is not None:
            # What was used around a beat or output may all have been used before it: that is no later sign.
            known = self.sampled is not None and self.sign_at > self.sampled.now
            sign = sign or (not known and _lives(before.sampled, seen))
            changes["sampled"] = seen
        if seen.usage is not None or seen.host is not None:
            changes["samples"] = (*self.samples, seen)[-_SAMPLES:]
        if moved:
            changes["progress_at"] = seen.now
            changes["progresses"] = before.progresses.closed(self.last.phase, seen.now - self.progress_at, seen.now)
        if sign:
            changes["sign_at"] = seen.now
            changes["signs"] = before.signs.closed(self.last.phase, seen.now - self.sign_at, seen.now)
        return replace(before, **changes, **_trends(before, seen), **_stepped(before, seen))

    def shifted(self, gap: float, now: float) -> History:
        """Return the history after `gap` seconds in which nobody could look: they do not count for any limit."""
        return replace(
            self._spoiled(),
            progress_at=self.progress_at + gap,
            sign_at=self.sign_at + gap,
            sampled=None,
            woken_at=now,
            samples=(),
            log=self.log.shifted(gap),
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
    """Whether an interval that holds these two looks is not how long something takes.

    Ended, healed or stopped; or the ends of the interval are those of two ranks.
    """
    stopped = seen.usage is not None and bool(seen.usage.stopped)
    healed = len(seen.healed) != len(before.healed)
    return seen.exit is not None or seen.spoken or stopped or healed or _another_speaks(before, seen)


def _another_speaks(before: Observation, seen: Observation) -> bool:
    """Whether it is another rank that speaks, or another round: a rank that is started again has another process."""
    if before.between != seen.between:
        return True
    one, other = before.beat, seen.beat
    return one is not None and other is not None and (one.rank, one.pid) != (other.rank, other.pid)


def _stepped(history: History, seen: Observation) -> dict[str, Any]:
    """Return what one more look says of steps."""
    before = history.last
    steps = step_of(seen) - step_of(before)
    if not steps:
        # The step that is open holds something else too.
        return {"unbroken": False} if history.unbroken and seen.phase != "step" else {}
    slowest, pace = history.slowest_step, history.pace
    # An interval that held sampling or saving says nothing about how long a step takes.
    if history.stepped_at is not None and seen.phase == before.phase == "step":
        seconds = seen.now - history.stepped_at
        slowest = max(slowest, seconds)
        if steps > 0 and history.unbroken:
            pace = pace.stepped(seconds, steps)
    return {"slowest_step": slowest, "stepped_at": seen.now, "pace": pace, "unbroken": True}


def _trends(history: History, seen: Observation) -> dict[str, Any]:
    """Return what one more look adds to the trends."""
    before, sample = history.last, seen.host is not None
    return {
        "saving": history.saving.then(seen.phase, before.phase, seen.disk_free, sample=sample),
        "stepping": _stepping(history.stepping, before.beat, seen.beat),
        "log": _log_after(history.log, before.unread, seen),
    }


def _stepping(stepping: Stepping, before: Beat | None, beat: Beat | None) -> Stepping:
    if before is None or beat is None or before.rank != beat.rank or not before.phase == beat.phase == "step":
        return Stepping(most=stepping.most) if stepping.whole or stepping.waiting else stepping
    if beat.step != before.step:
        return stepping.stepped()
    batches = beat.batch - before.batch if beat.epoch == before.epoch else beat.batch
    return stepping.trained(batches) if batches > 0 else stepping


def _log_after(log: LogWatch, unread_before: int, seen: Observation) -> LogWatch:
    if seen.unread != unread_before:
        log = log.unread(seen.now)
    return log.then(seen.matches, seen.now)


def _progress(beat: Beat) -> tuple[object, ...]:
    return (beat.step, beat.batch, beat.epoch, beat.phase, beat.done)


def _all_beats(seen: Observation) -> tuple[int, ...]:
    """Return what changes with each beat and each collective of any rank."""
    return tuple(n for beat in seen.ranks for n in (beat.beats, beat.collective.begun if beat.collective else 0))


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
