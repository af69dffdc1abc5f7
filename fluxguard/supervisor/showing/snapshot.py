"""Everything there is to see of a run at one moment, from its files alone: nothing is asked of the run itself.

What only the supervisor can see (what processes compute and read, whether the machine slept) lengthens the time that is
left to a limit; so the times here are those that are left at least.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.errors import InputError
from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger, remembering, resuming, timeline
from fluxguard.supervisor.showing import status as statuses
from fluxguard.supervisor.showing.eta import Pace, pace_of
from fluxguard.supervisor.showing.status import Status
from fluxguard.supervisor.timeline import Point


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left of one limit."""

    name: str
    """patience, ceiling, or the wait that is open."""
    limit: float
    """Seconds from its start."""
    left: float
    """Seconds, at least; below 0 when it is passed."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One look at a run."""

    at: float
    """Seconds since the epoch."""
    status: Status
    phase_for: float | None = None
    """Seconds in this phase; None when unknown."""
    done: int = 0
    """Items done in this phase, of `of`; both 0 when it does not count."""
    of: int = 0
    limits: tuple[Left, ...] = ()
    """The limits that run now, the one that is reached first in front."""
    pace: Pace = field(default_factory=Pace)
    losses: tuple[float, ...] = ()
    """Of this run, in order."""
    point: Point | None = None
    """The newest sample of what the machine shows."""
    dry: bool = False
    """Whether the supervisor only tells."""

    @property
    def name(self) -> str:
        """The run's name, which is that of its folder; of one machine of several with that of the machine."""
        return "/".join(filter(None, (Path(self.status.output_dir).name, self.status.node)))

    @property
    def eta(self) -> float | None:
        """Seconds to the end; None when it is not known or the run is over."""
        if self.status.state != "running":
            return None
        return self.pace.eta(self.status.planned_steps or 0)


class Points:
    """The samples of a run, of which each look reads the new ones only: a long run has megabytes of them."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.timeline
        self._points: list[Point] = []
        self._position = 0
        self._inode = 0

    def read(self) -> Sequence[Point]:
        """Return all there are now; a file that was thinned out or replaced is read anew."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._position:
                    self._points, self._position, self._inode = [], 0, found.st_ino
                file.seek(self._position)
                whole = file.read()
        except OSError:
            return self._points
        whole = whole[: whole.rfind(b"\n") + 1]
        self._position += len(whole)
        self._points += timeline.parsed(whole)
        return self._points


def read(run: RunDir, clock: Clock, known: Points | None = None) -> Snapshot | None:
    """Return what is to be seen of a run now, or None when there is none. `known` are the samples read before."""
    status = statuses.read(run)
    if status is None:
        return None
    events = ledger.read(run.ledger)
    points = (known or Points(run)).read()
    attempt = attempts.last(run, events)
    running = status.phase is not None
    mine = [one for one in points if attempt and one.attempt == attempt.number]
    pace = pace_of([*mine, *_now(status, attempt, clock)])
    beats = attempt.beats(run) if running and attempt else []
    beat = min(beats, key=lambda one: one.rank, default=None)
    job = ledger.newest(events, "job")
    seen = _Seen(
        status=status,
        beat=beat,
        beat_at=max((one.at for one in beats), default=0.0),
        points=mine,
        now=clock.monotonic(),
        wall=clock.wall(),
        log_age=_log_age(run, clock),
        begun=attempt.at if attempt else 0.0,
    )
    return Snapshot(
        at=clock.wall(),
        status=status,
        phase_for=seen.phase_for(),
        done=beat.done if beat else 0,
        of=beat.of if beat else 0,
        limits=_left(seen, _limits(run), pace) if running else (),
        pace=pace,
        losses=tuple(one.loss for one in points if one.loss is not None),
        point=points[-1] if points else None,
        dry=bool(job and job.values.get("dry_run")),
    )


def _now(status: Status, attempt: attempts.Attempt | None, clock: Clock) -> list[Point]:
    """Return what this look adds to the samples of an attempt that runs."""
    if attempt is None or status.phase is None:
        return []
    return [Point(at=clock.wall(), attempt=attempt.number, phase=status.phase, step=status.step)]


def runs_in(folder: Path) -> list[RunDir]:
    """Return the runs below a folder, those that `resume-all` would look at; itself is none, its machines are."""
    return [run for run in resuming.runs_in(folder) if run.node or run.output_dir != folder.resolve()]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What the limits of a running attempt are held against."""

    status: Status
    beat: Beat | None
    """Of the lowest rank of this machine."""
    beat_at: float
    """When any rank did beat last, monotonic seconds."""
    points: Sequence[Point]
    now: float
    wall: float
    log_age: float
    begun: float

    def phase_for(self) -> float | None:
        if self.beat is not None:
            return self.now - self.beat.phase_at if self.beat.phase_at <= self.now else None
        if self.status.phase is None:
            return None
        since = self.begun
        for before, one in zip(self.points, self.points[1:], strict=False):
            since = one.at if one.phase != before.phase else since
        return max(0.0, self.wall - since)

    def quiet_for(self) -> float:
        """Return the seconds without a beat or progress, as far as files show."""
        if self.beat is not None:
            return max(0.0, self.now - self.beat_at)
        last = self.points[-1] if self.points else None
        moved = pace_of(self.points).moved_at or 0.0
        if last is not None and (last.step, last.phase) != (self.status.step, self.status.phase):
            moved = last.at  # or later
        return max(0.0, self.wall - max(moved, self.begun))


def _left(seen: _Seen, limits: Limits | None, pace: Pace) -> tuple[Left, ...]:
    if limits is None or seen.status.phase is None:
        return ()
    phase = limits.for_phase(seen.status.phase)
    quiet = seen.quiet_for()
    found = []
    if phase.patience is not None:
        # Output is a sign of life, and no progress.
        found.append(Left(name="patience", limit=phase.patience, left=phase.patience - min(quiet, seen.log_age)))
    ceiling = phase.ceiling
    if ceiling is not None and seen.status.phase == "step":
        first = limits.for_phase("first step").ceiling
        grown = limits.watch.step_factor * pace.slowest if pace.slowest else first
        ceiling = max(ceiling, grown or math.inf)
    if ceiling is not None and ceiling < math.inf:
        found.append(Left(name="ceiling", limit=ceiling, left=ceiling - quiet))
    if seen.beat is not None and seen.beat.wait and seen.beat.deadline < math.inf:
        limit = seen.beat.deadline - seen.beat.at
        found.append(Left(name=seen.beat.wait, limit=limit, left=seen.beat.deadline - seen.now))
    return tuple(sorted(found, key=lambda one: one.left))


def _limits(run: RunDir) -> Limits | None:
    try:
        return remembering.chosen(run).grown(remembering.learned(run))
    except InputError:
        return None


def _log_age(run: RunDir, clock: Clock) -> float:
    try:
        return max(0.0, clock.wall() - run.log.stat().st_mtime)
    except OSError:
        return math.inf
