"""What to do about a diagnosis: bounded restarts, with the reason as text. Pure; it touches no process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluxguard.limits import Limits
from fluxguard.supervisor.diagnosis import Diagnosis
from fluxguard.supervisor.signatures import MACHINE, OUTSIDE, TRAINER


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


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens next."""

    action: str
    """restart or stop."""
    reason: str
    """Why, in words; the same in the ledger, the report and the page."""
    after: float = 0.0
    """Seconds to wait before a restart."""


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
    fruitless = sum((s.origin == OUTSIDE) == outside for s in _since_progress(setbacks))
    if fruitless <= largest:
        return None
    return f"{largest} restart{'' if largest == 1 else 's'} in a row brought no progress"


STOPS: tuple[Rule, ...] = (hopeless, same_place, budget)


def decide(diagnosis: Diagnosis, setbacks: Sequence[Setback], limits: Limits) -> Decision:
    """Return what happens next. `setbacks` are those of the run so far, the present one last."""
    for rule in STOPS:
        if reason := rule(diagnosis, setbacks, limits):
            return Decision(action="stop", reason=reason)
    fruitless = len(_since_progress(setbacks))
    after = 0.0 if fruitless <= 1 and diagnosis.origin != MACHINE else _backoff(max(1, fruitless - 1), limits)
    return Decision(action="restart", reason=f"another attempt can end differently ({diagnosis.cause})", after=after)


def _since_progress(setbacks: Sequence[Setback]) -> Sequence[Setback]:
    """Return the setbacks since the last one whose attempt had progressed, that one included."""
    for index in range(len(setbacks) - 1, -1, -1):
        if setbacks[index].progressed:
            return setbacks[index:]
    return setbacks


def _backoff(fruitless: int, limits: Limits) -> float:
    seconds = limits.watch.backoff * 2.0 ** (fruitless - 1)
    return float(min(seconds, limits.watch.backoff_ceiling))
