"""Detectors: each turns a history into a symptom or None. Pure; the tables of their tests are histories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.detecting.signs import beside, dead, ranks


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """Something that a run which goes on well does not show."""

    kind: str
    """ended, given up, overdue, watched log, idle or stuck."""
    phase: str
    since: float
    """Seconds since the last beat or output."""
    limit: float | None = None
    """The limit that was passed, in seconds."""
    what: str = ""
    """The wait that is open, when the trainer says; of a watched log the pattern's name and why it spoke."""
    name: str = ""
    """The pattern of the user's own that spoke."""
    then: str = "restart"
    """What the user wants to follow: restart or stop."""
    signs: tuple[str, ...] = ()
    """What else was to be seen, in words: the GPU's power, a rank that stays behind, waits in the kernel."""
    ranks: str = ""
    """Which rank the others wait for, where, and what it does instead; empty when none waits, or there is only one."""
    late: tuple[int, ...] = ()
    """The processes of those that are waited for, the latest first."""


Detector = Callable[[History, Limits], Symptom | None]


def ended(history: History, limits: Limits) -> Symptom | None:
    """An attempt has ended when its keeper says so."""
    if history.last.exit is None:
        return None
    return _symptom("ended", history, None)


def given_up(history: History, limits: Limits) -> Symptom | None:
    """An attempt has given up when the guard in it has left its last words."""
    return _symptom("given up", history, None) if history.last.spoken else None


def overdue(history: History, limits: Limits) -> Symptom | None:
    """A wait is overdue when the guard, which should have ended the process, did not: it cannot run any more."""
    beat = history.last.beat
    if beat is None or not beat.wait:
        return None
    # After a suspend the guard moves its own limits on, but not at once.
    if history.last.now <= max(beat.deadline, history.woken_at) + limits.watch.overdue:
        return None
    return _symptom("overdue", history, limits.watch.overdue, beat.wait)


def watched_log(history: History, limits: Limits) -> Symptom | None:
    """A log is not as the user's own patterns expect it."""
    broken = history.log.broken(history.last.now, history.last.matches.slow)
    if broken is None:
        return None
    name = broken.pattern.name
    found = _symptom("watched log", history, broken.limit, f"{name}: {broken.reason}")
    return replace(found, name=name, then=broken.pattern.then)


def idle(history: History, limits: Limits) -> Symptom | None:
    """A run is idle when nothing was seen of it for the patience of its phase: no beat, output, processor time or I/O.

    What cannot be seen is not idle: without a heartbeat and without a sample of its processes there is no verdict.
    """
    patience = _longest(limits.for_phase(phase).patience for phase in _phases(history))
    if patience is None or history.last.now - history.sign_at <= patience:
        return None
    if history.last.beat is None and history.sampled is None:
        return None
    return _moveless("idle", history, patience, limits)


def stuck(history: History, limits: Limits) -> Symptom | None:
    """A run is stuck when it made no progress for the ceiling of its phase, whatever else moves."""
    ceiling = _longest(limits.for_phase(phase).ceiling for phase in _phases(history))
    if ceiling is None:
        return None
    if history.last.phase == "step":
        ceiling = max(ceiling, _step_ceiling(history, limits) or math.inf)
    if history.last.now - history.progress_at <= ceiling:
        return None
    return _moveless("stuck", history, ceiling, limits)


def _phases(history: History) -> set[str]:
    """Return the phases of all ranks: one that waits is no more stuck than the one it waits for, which may save."""
    gone = dead(history)
    return {history.last.phase, *(beat.phase for beat in history.last.ranks if beat.pid not in gone)}


def _longest(allowed: Iterable[float | None]) -> float | None:
    """Return the longest of some limits; None where one of them is none."""
    longest = max(math.inf if one is None else one for one in allowed)
    return None if longest == math.inf else longest


def _step_ceiling(history: History, limits: Limits) -> float | None:
    """Return the ceiling by what steps of this run take; until one was seen whole, that of the first step."""
    if history.slowest_step:
        return limits.watch.step_factor * history.slowest_step
    return limits.for_phase("first step").ceiling


DETECTORS: tuple[Detector, ...] = (ended, given_up, overdue, watched_log, idle, stuck)
"""In order of certainty: the first that speaks is acted on."""


def detect(history: History, limits: Limits) -> Symptom | None:
    """Return the most certain symptom, or None."""
    return next(filter(None, (detector(history, limits) for detector in DETECTORS)), None)


def _moveless(kind: str, history: History, limit: float, limits: Limits) -> Symptom:
    return replace(_symptom(kind, history, limit), signs=beside(history, limits))


def _symptom(kind: str, history: History, limit: float | None, what: str = "") -> Symptom:
    beat = history.last.beat
    seen = ranks(history, alive=kind not in ("ended", "given up"))
    return Symptom(
        kind=kind,
        phase=history.last.phase,
        since=max(0.0, history.last.now - history.seen_at),
        limit=limit,
        what=what or (beat.wait if beat else ""),
        ranks=seen.words if seen else "",
        late=tuple(one.pid for one in seen.late) if seen else (),
    )
