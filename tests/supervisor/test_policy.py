"""Laws of the decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard.limits import Limits
from fluxguard.supervisor.diagnosis import Diagnosis
from fluxguard.supervisor.policy import Setback, decide
from fluxguard.supervisor.signatures import MACHINE, OUTSIDE, TRAINER

LIMITS = replace(Limits(), max_restarts=3, max_kills=5)


def diagnosis(origin: str = TRAINER, *, again: bool = True) -> Diagnosis:
    """Return a diagnosis of this origin."""
    return Diagnosis(cause="a cause", words="It happened.", origin=origin, again=again, place="here")


def setback(step: int, *, progressed: bool, origin: str = TRAINER, place: str = "here") -> Setback:
    """Return a setback at a step."""
    return Setback(cause="a cause", origin=origin, place=place, step=step, progressed=progressed)


def test_the_first_restart_after_progress_is_immediate() -> None:
    """Nothing is waited for when the attempt had come further."""
    decision = decide(diagnosis(), [setback(10, progressed=True)], LIMITS)
    assert (decision.action, decision.after) == ("restart", 0.0)


def test_restarts_without_progress_back_off() -> None:
    """Each waits twice as long as the one before."""
    waits = []
    past = [setback(10, progressed=True, place="0")]
    for number in range(1, 4):
        waits.append(decide(diagnosis(), past, LIMITS).after)
        past.append(setback(10 - number, progressed=False, place=str(number)))
    assert waits == [0.0, 15.0, 30.0]


def test_the_budget_ends_and_progress_refills_it() -> None:
    """More restarts without progress than allowed stop the run; one that progressed starts the count anew."""
    fruitless = [setback(9 - i, progressed=False, place=str(i)) for i in range(4)]
    assert decide(diagnosis(), fruitless, LIMITS).action == "stop"
    assert decide(diagnosis(), [*fruitless, setback(20, progressed=True)], LIMITS).action == "restart"


def test_the_same_place_twice_stops_the_run() -> None:
    """Same cause, same place, same step, from the trainer."""
    twice = [setback(7, progressed=True), setback(7, progressed=False)]
    decision = decide(diagnosis(), twice, LIMITS)
    assert decision.action == "stop"
    assert "twice at the same place (step 7" in decision.reason


@pytest.mark.parametrize("origin", [OUTSIDE, MACHINE])
def test_the_same_place_twice_is_bad_luck_when_it_came_from_elsewhere(origin: str) -> None:
    """A kill at the same step is not the run's fault."""
    twice = [setback(7, progressed=True, origin=origin), setback(7, progressed=False, origin=origin)]
    assert decide(diagnosis(origin), twice, LIMITS).action == "restart"


def test_kills_from_outside_have_their_own_budget() -> None:
    """They do not use up the budget of the run's own faults."""
    kills = [setback(5, progressed=False, origin=OUTSIDE) for _ in range(5)]
    assert decide(diagnosis(OUTSIDE), kills, LIMITS).action == "restart"
    assert decide(diagnosis(), [*kills, setback(4, progressed=False)], LIMITS).action == "restart"
    assert decide(diagnosis(OUTSIDE), [*kills, kills[0]], LIMITS).action == "stop"


def test_what_would_only_repeat_itself_stops_at_once() -> None:
    """Bad arguments are not tried again."""
    decision = decide(diagnosis(again=False), [setback(0, progressed=False)], LIMITS)
    assert decision.action == "stop"


def test_no_restarts_means_none() -> None:
    """A budget of 0 stops at the first setback."""
    none = replace(LIMITS, max_restarts=0)
    assert decide(diagnosis(), [setback(3, progressed=True)], none).action == "stop"


def test_the_wait_is_bounded() -> None:
    """Backing off ends at its ceiling."""
    many = [setback(5, progressed=False, origin=OUTSIDE) for _ in range(30)]
    patient = replace(LIMITS, max_kills=100)
    assert decide(diagnosis(OUTSIDE), many, patient).after == LIMITS.watch.backoff_ceiling
