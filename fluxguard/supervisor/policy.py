"""What to do about a diagnosis: bounded restarts, with the reason as text. Pure; it touches no process."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluxguard.launch.remedies import Change
from fluxguard.limits import Limits
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.causes.signatures import MACHINE, OUTSIDE, TRAINER


@dataclass(frozen=True, kw_only=True)
class Setback:
    """An earlier attempt that did not reach the end."""

    cause: str
    origin: str
    place: str
    step: int
    """True steps when it ended."""
    progressed: bool
    """Whether it came further than the attempts before it."""
    after: float = 0.0
    """Seconds that were waited before the attempt that followed."""
    remedy: str | None = None
    """What that attempt did otherwise."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens next."""

    action: str
    """restart or stop."""
    reason: str
    """Why, in words; the same in the ledger, the report and the page."""
    after: float = 0.0
    """Seconds to wait before a restart."""
    change: Change | None = None
    """What the next attempt does otherwise, and all after it."""


Rule = Callable[[Diagnosis, Sequence[Setback], Limits], "str | None"]
"""Returns why the run has to stop, or None. The setbacks include the present one, last."""


def hopeless(diagnosis: Diagnosis, setbacks: Sequence[Setback], limits: Limits) -> str | None:
    """A cause that another attempt would only meet again stops the run."""
    return None if diagnosis.again else f"another attempt would end the same way ({diagnosis.cause})"


def same_place(diagnosis: Diagnosis, setbacks: Sequence[Setback], limits: Limits) -> str | None:
    """Two deaths at one place by one cause from the trainer are not bad luck."""
    if diagnosis.origin != TRAINER or len(setbacks) < 2:
        return None
    last, before = setbacks[-1], setbacks[-2]
    same = (last.cause, last.place, last.step) == (before.cause, before.place, before.step)
    return f"it happened twice at the same place (step {last.step}: {last.cause})" if same else None


def budget(diagnosis: Diagnosis, setbacks: Sequence[Setback], limits: Limits) -> str | None:
    """Restarts that bring no progress are bounded; kills from outside have a budget of their own."""
    outside = diagnosis.origin == OUTSIDE
    largest = limits.max_kills if outside else limits.max_restarts
    fruitless = sum((s.origin == OUTSIDE) == outside for s in _alike(_since_progress(setbacks)))
    if fruitless <= largest:
        return None
    return f"{largest} restart{'' if largest == 1 else 's'} in a row brought no progress"


STOPS: tuple[Rule, ...] = (hopeless, same_place, budget)


def dice(mark: str) -> float:
    """Return a number from 0 to 1 that only this attempt draws, and draws again in every supervisor."""
    return random.Random(mark).random()


def decide(
    diagnosis: Diagnosis,
    setbacks: Sequence[Setback],
    limits: Limits,
    *,
    offers: Sequence[Change] = (),
    chance: float = 0.5,
) -> Decision:
    """Return what happens next. `setbacks` are those of the run so far, the present one last.

    `offers` is what another attempt could do otherwise, mildest first: where a plain restart would be useless, the
    first of them is tried; only when none is left, or as many as there may be restarts brought no progress, the run
    stops. `chance`, from 0 to 1, spreads the waits of runs that failed together.
    """
    reason = next(filter(None, (rule(diagnosis, setbacks, limits) for rule in STOPS)), None)
    reason = reason or (_recurs(diagnosis, setbacks) if offers else None)
    if reason is None:
        after = _wait(diagnosis, setbacks, limits, chance)
        return Decision(
            action="restart", reason=f"another attempt can end differently ({diagnosis.cause})", after=after
        )
    if offers and _changed(setbacks) < limits.max_restarts:
        change = offers[0]
        otherwise = f"{reason}, so the next one is made otherwise: {change.remedy} ({', '.join(change.flags)})"
        return Decision(action="restart", reason=otherwise, change=change)
    tried = list(dict.fromkeys(one.remedy for one in setbacks if one.remedy))
    return Decision(action="stop", reason=f"{reason}; tried before: {', '.join(tried)}" if tried else reason)


def _recurs(diagnosis: Diagnosis, setbacks: Sequence[Setback]) -> str | None:
    """Return that a cause from the trainer came twice at one wait or file, though at different steps.

    That alone stops no run, which may have trained in between; but something that can be done otherwise should be.
    """
    if diagnosis.origin != TRAINER or len(setbacks) < 2:
        return None
    last, before = setbacks[-1], setbacks[-2]
    same = bool(last.place) and (last.cause, last.place) == (before.cause, before.place)
    return f"it happened twice ({last.cause})" if same else None


def _wait(diagnosis: Diagnosis, setbacks: Sequence[Setback], limits: Limits, chance: float) -> float:
    """Return the seconds before a restart: none after progress, then more and more, never two runs the same.

    Decorrelated jitter: anything from the shortest wait to three times the last one.
    """
    alike = _alike(_since_progress(setbacks))
    if len(alike) <= 1 and diagnosis.origin != MACHINE:
        return 0.0
    shortest = limits.watch.backoff
    last = max(shortest, alike[-2].after if len(alike) > 1 else 0.0)
    return float(min(shortest + chance * (3 * last - shortest), limits.watch.backoff_ceiling))


def _changed(setbacks: Sequence[Setback]) -> int:
    """Return how often something was done otherwise since there was progress."""
    return sum(one.remedy is not None for one in _since_progress(setbacks))


def _since_progress(setbacks: Sequence[Setback]) -> Sequence[Setback]:
    """Return the setbacks since the last one whose attempt had progressed, that one included."""
    for index in range(len(setbacks) - 1, -1, -1):
        if setbacks[index].progressed:
            return setbacks[index:]
    return setbacks


def _alike(setbacks: Sequence[Setback]) -> Sequence[Setback]:
    """Return the setbacks of attempts that all did the same: what is done otherwise begins the count anew."""
    for index in range(len(setbacks) - 1, -1, -1):
        if setbacks[index].remedy:
            return setbacks[index + 1 :]
    return setbacks
