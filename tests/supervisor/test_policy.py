"""Laws of the decisions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fluxguard.launch.remedies import FEWER_WORKERS, MORE_SWAP, Change
from fluxguard.limits import Limits
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.causes.signatures import MACHINE, OUTSIDE, TRAINER
from fluxguard.supervisor.policy import Setback, decide, dice

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
    """The first after progress is immediate; each further one waits from the shortest wait to thrice the last one."""
    waits = []
    past = [setback(10, progressed=True, place="0")]
    for number in range(1, 5):
        after = decide(diagnosis(), past, replace(LIMITS, max_restarts=9), chance=0.99).after
        waits.append(after)
        past[-1] = replace(past[-1], after=after)
        past.append(setback(10 - number, progressed=False, place=str(number)))
    assert waits[0] == 0.0
    assert all(15.0 <= after <= 3 * max(15.0, before) for before, after in pairwise(waits) if after)
    assert waits[1] < waits[2] < waits[3]


def test_no_two_runs_wait_the_same() -> None:
    """The chance is an argument: the same attempt draws the same wait in every supervisor, another one another."""
    past = [setback(10, progressed=True, place="0"), setback(9, progressed=False, place="1")]
    mine, again, other = (decide(diagnosis(), past, LIMITS, chance=dice(mark)).after for mark in ("a", "a", "b"))
    assert mine == again != other
    assert 15.0 <= mine <= 45.0


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
    many = [replace(setback(5, progressed=False, origin=OUTSIDE), after=899.0) for _ in range(30)]
    patient = replace(LIMITS, max_kills=100)
    assert decide(diagnosis(OUTSIDE), many, patient, chance=0.9).after == LIMITS.watch.backoff_ceiling


FEWER = Change(remedy=FEWER_WORKERS, argv=("python",), flags=("--max_data_loader_n_workers 1 (was 2)",))
SWAP = Change(remedy=MORE_SWAP, argv=("python",), flags=("--blocks_to_swap 12 (was 0)",))


def test_a_cause_that_would_repeat_itself_is_met_otherwise() -> None:
    """Another attempt is made only because something about it is changed, and says what."""
    decision = decide(diagnosis(MACHINE, again=False), [setback(0, progressed=False)], LIMITS, offers=[SWAP])
    assert (decision.action, decision.change, decision.after) == ("restart", SWAP, 0.0)
    assert "more blocks swapped (--blocks_to_swap 12 (was 0))" in decision.reason


def test_two_deaths_at_one_place_try_the_mildest_remedy_first() -> None:
    """A plain restart comes before any remedy."""
    first = [setback(7, progressed=True)]
    assert decide(diagnosis(), first, LIMITS, offers=[FEWER, SWAP]).change is None
    twice = [*first, setback(7, progressed=False)]
    assert decide(diagnosis(), twice, LIMITS, offers=[FEWER, SWAP]).change is FEWER


def test_a_wait_that_recurs_at_other_steps_is_met_otherwise_but_stops_nothing() -> None:
    """A run that trains on between two deaths goes on; what can be changed about them is changed."""
    twice = [setback(7, progressed=True), setback(19, progressed=True)]
    assert decide(diagnosis(), twice, LIMITS, offers=[FEWER]).change is FEWER
    plain = decide(diagnosis(), twice, LIMITS)
    assert (plain.action, plain.change) == ("restart", None)


def test_a_remedy_that_did_not_help_is_followed_by_the_next_at_once_and_then_by_the_end() -> None:
    """The ladder is finite: when nothing is left of it, the run stops and says what was tried."""
    past = [setback(7, progressed=True), replace(setback(7, progressed=False), remedy=FEWER_WORKERS)]
    past.append(setback(7, progressed=False))
    assert decide(diagnosis(), past, LIMITS, offers=[SWAP]).change is SWAP
    end = decide(diagnosis(), past, LIMITS)
    assert end.action == "stop"
    assert end.reason.endswith("tried before: fewer loader workers")


def test_what_is_done_otherwise_begins_the_budget_anew() -> None:
    """Restarts before a remedy say nothing about those after it."""
    fruitless = [setback(9, progressed=False, place=str(i)) for i in range(3)]
    before = [*fruitless[:-1], replace(fruitless[-1], remedy=FEWER_WORKERS)]
    assert decide(diagnosis(), [*before, setback(8, progressed=False, place="x")], LIMITS).action == "restart"


def test_an_exhausted_budget_is_met_otherwise_where_something_can_be() -> None:
    """Before the run is given up."""
    fruitless = [setback(9 - i, progressed=False, place=str(i)) for i in range(4)]
    assert decide(diagnosis(), fruitless, LIMITS, offers=[FEWER]).change is FEWER


def test_what_is_done_otherwise_is_bounded_as_restarts_are_until_there_is_progress() -> None:
    """A ladder of many rungs is not climbed to its end where none of them helps."""
    first = [replace(setback(7, progressed=True), remedy=MORE_SWAP)]
    past = [*first, *(replace(setback(7, progressed=False), remedy=MORE_SWAP) for _ in range(2))]
    again = diagnosis(MACHINE, again=False)
    assert decide(again, [*first, setback(7, progressed=False)], LIMITS, offers=[SWAP]).change is SWAP
    end = decide(again, [*past, setback(7, progressed=False)], LIMITS, offers=[SWAP])
    assert end.action == "stop"
    assert end.reason.endswith("tried before: more blocks swapped")
    assert decide(again, [*past, setback(20, progressed=True)], LIMITS, offers=[SWAP]).change is SWAP


def test_no_restarts_means_no_remedy_either() -> None:
    """Whoever allows no restart wants none."""
    none = replace(LIMITS, max_restarts=0)
    assert decide(diagnosis(again=False), [setback(3, progressed=True)], none, offers=[SWAP]).action == "stop"
