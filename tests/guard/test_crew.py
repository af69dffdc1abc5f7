"""Laws of the books that are kept of a loader's workers: what each was given, has delivered, and still owes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fluxguard.guard import crew as crews
from fluxguard.guard.crew import Crew, Delivery
from fluxguard.guard.rehearsal import CHECK, WARM_UP, GoOnWith

if TYPE_CHECKING:
    import pytest


class _ResumeIteration:
    """torch's message that an epoch begins, known by its name."""


class _IterableDatasetStopIteration:
    """torch's message that a worker's stream is over, known by its name."""


def crew(workers: int = 2) -> Crew:
    """Return a crew of workers that live."""
    made = Crew()
    for number in range(workers):
        process: Any = SimpleNamespace(pid=100 + number, exitcode=None)
        assert made.join(process, (None, ())) == number
    return made


def deliver(made: Crew, number: int, key: Any, batch: Any, states: Any = ("after",), generation: int = 0) -> Any:
    """Let a worker send something, and return what torch gets of it."""
    return made.delivered(Delivery(number, (key, batch), states), generation)


def test_what_was_delivered_is_owed_no_more() -> None:
    """Each worker owes what it was given, in that order, until it comes."""
    made = crew()
    for key in range(4):
        made.given(key % 2, (key, [key]))
    assert made.holding() == [0, 1]
    assert deliver(made, 0, 0, "first") == (0, "first")
    assert made.samples([0, 1]) == ([2], [1], [3])
    deliver(made, 0, 2, "third")
    assert made.holding() == [1]
    assert made.pids([1]) == (101,)


def test_where_nobody_is_known_to_owe_anything_all_may_hold_the_batch() -> None:
    """A wait for nobody is no reason to let the trainer hang."""
    assert crew(3).holding() == [0, 1, 2]


def test_what_no_worker_of_ours_sent_is_torchs() -> None:
    """As the pair that it puts among the batches to wake its pinning thread."""
    assert crew().delivered((None, None), 0) == (None, None)


def test_a_worker_is_starting_until_it_sends_anything() -> None:
    """Only one that owes something: the others are waited for by nobody."""
    made = crew()
    made.given(0, (0, [0]))
    assert made.starting()
    deliver(made, 0, 0, "batch")
    assert not made.starting()
    made.given(1, (1, [1]))
    assert made.starting()


def test_an_epoch_of_a_persistent_worker_begins_with_an_answer() -> None:
    """Until it comes it is owed, and a fresh worker is asked for it again, before any batch."""
    made, begins = crew(1), _ResumeIteration()
    made.given(0, (0, [0]))
    deliver(made, 0, 0, "batch", ("first epoch",))
    made.given(0, begins)
    made.given(0, (0, [7]))
    assert made.members[0].work() == [GoOnWith(("first epoch",)), begins, (0, [7])]
    assert deliver(made, 0, begins, None) == (begins, None)
    assert made.members[0].resume is None
    assert list(made.members[0].given) == [0]


def test_the_end_of_a_stream_takes_back_what_its_worker_was_given() -> None:
    """torch drops it, so nobody waits for it any more."""
    made = crew()
    made.given(0, (0, [0]))
    made.given(0, (2, [0]))
    made.given(1, (1, [0]))
    deliver(made, 0, 0, _IterableDatasetStopIteration())
    assert made.holding() == [1]


def test_the_word_that_ends_a_worker_is_no_work() -> None:
    """torch sends it None."""
    made = crew(1)
    made.given(0, None)
    assert not made.members[0].owes


def replaced(*, again: Any = "second", workers: int = 1) -> Crew:
    """Return a crew whose fresh workers have fetched the last batch of worker 0 again."""
    made = crew(workers)
    for key, batch in enumerate(("first", "second")):
        made.given(0, (key, [key]))
        deliver(made, 0, key, batch, (batch,))
    made.given(0, (2, [2]))
    made.replaced()
    assert made.rehearsing()
    assert deliver(made, 0, WARM_UP, "anything", generation=1) is None
    assert made.rehearsing()
    assert deliver(made, 0, CHECK, again, ("second",), generation=1) is None
    assert not made.rehearsing()
    return made


def test_a_fresh_worker_is_given_its_past_and_then_what_is_owed() -> None:
    """In that order: it must be what the old one was before it loads for the trainer."""
    made = replaced()
    past = [(WARM_UP, [0]), GoOnWith(("first",)), (CHECK, [1]), GoOnWith(("second",))]
    assert made.members[0].work() == [*past, (2, [2])]


def test_a_batch_that_is_the_same_again_leaves_no_doubt() -> None:
    """And it is not delivered twice."""
    assert replaced().doubts == []


def test_a_batch_that_is_another_when_fetched_again_leaves_a_doubt() -> None:
    """Whatever the worker loads from here on may be another too."""
    assert replaced(again="other").doubts == ["a batch that was fetched again is not the same"]


def test_what_fails_in_a_fresh_worker_is_the_errors_own_and_no_batch() -> None:
    """As when it cannot open what the first one had open: torch says so once, in answer to the first batch."""

    class ExceptionWrapper:
        pass

    made = crew(1)
    made.given(0, (0, [0]))
    deliver(made, 0, 0, "first", ("first",))
    made.given(0, (1, [1]))
    made.replaced()
    failed = ExceptionWrapper()
    assert deliver(made, 0, CHECK, failed, generation=1) is None
    assert made.failure is failed


def test_what_a_killed_worker_had_sent_is_nobodys() -> None:
    """Its work is done again: taken as well, it would be delivered twice."""
    made = crew(1)
    made.given(0, (0, [0]))
    made.replaced()
    assert deliver(made, 0, 0, "late", generation=0) is None
    assert made.samples([0]) == ([0],)
    assert deliver(made, 0, 0, "again", generation=1) == (0, "again")


def test_a_worker_that_died_twice_has_the_same_past() -> None:
    """What fresh workers fetch for the proof is no part of what was delivered."""
    made = replaced()
    work = made.members[0].work()
    made.replaced()
    assert made.members[0].work() == work
    assert made.rehearsing()


def test_a_fresh_worker_starts_anew() -> None:
    """It imports all that the first one imported, so the limit of a first batch is its own."""
    made = crew(1)
    made.given(0, (0, [0]))
    deliver(made, 0, 0, "batch")
    made.given(0, (1, [1]))
    made.replaced()
    assert made.starting()
    deliver(made, 0, CHECK, "batch", generation=1)
    assert not made.starting()


def test_a_doubt_that_no_batch_can_settle_is_known_at_once() -> None:
    """And those of an earlier replacement are over: what is fresh now was compared anew."""
    made = replaced(again="other")
    made.given(0, _ResumeIteration())
    made.replaced()
    assert not made.rehearsing()
    (doubt,) = made.doubts
    assert "lived for epochs" in doubt


def test_the_stopped_ones_are_the_stuck_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for nothing but their next task; where none is stopped, any of them may be stuck."""
    made = crew(3)
    for number in (0, 2):
        made.given(number, (number, [number]))
    assert made.stuck() == [0, 2]
    monkeypatch.setattr(crews, "stopped", lambda pid: pid in (101, 102))
    assert made.stuck() == [2]


def test_only_a_worker_that_owes_something_is_dead() -> None:
    """One that has ended its work may be gone, with whatever code."""
    made = crew(3)
    made.given(1, (0, [0]))
    for number, code in enumerate((0, 0, -9)):
        made.members[number].process.exitcode = code  # type: ignore[misc]
    assert made.dead() == [1]
