"""Laws of meeting other ranks, without any: a dictionary is the store and time stands still."""

from __future__ import annotations

import math

import pytest

from fluxguard.guard import barrier as barriers
from fluxguard.guard import peers
from fluxguard.guard.peers import Meeting, Sign, Signs, allowing, patience


class Shelf(dict[str, int]):
    """A store in this process."""

    def add(self, key: str, amount: int) -> int:
        self[key] = self.get(key, 0) + amount
        return self[key]


def meetings(store: Shelf, world: int, number: int = 0) -> list[Meeting]:
    return [Meeting(store, number, rank, world) for rank in range(world)]


def test_a_meeting_is_complete_when_all_have_come() -> None:
    first, second, third = meetings(Shelf(), 3)
    first.arrive()
    third.arrive()
    assert not first.complete(first.here())
    assert first.missing() == third.missing() == (1,)
    second.arrive()
    assert all(meeting.complete(meeting.here()) for meeting in (first, second, third))
    assert first.missing() == ()


def test_one_barrier_is_not_the_next_one() -> None:
    """A rank that has passed one and waits at the next has not come to the one before twice."""
    store = Shelf()
    for meeting in meetings(store, 2):
        meeting.arrive()
    meetings(store, 2, number=1)[0].arrive()
    assert meetings(store, 2, number=1)[0].missing() == (1,)


def test_a_meeting_that_was_given_up_never_becomes_complete() -> None:
    """Whoever comes later, however many, must not go on without those who left."""
    first, second = meetings(Shelf(), 2)
    first.arrive()
    first.give_up()
    second.arrive()
    assert second.here() < 0
    assert not second.complete(second.here())


def test_without_a_sign_the_limit_counts_from_the_arrival() -> None:
    signs = Signs(lambda rank: None, allowing(300.0), since=1000.0)
    assert signs.left(1, 1100.0) == 200.0
    assert signs.left(1, 1300.0) == 0.0


def test_a_sign_of_life_begins_the_limit_anew() -> None:
    beats = 5
    signs = Signs(lambda rank: Sign(beats, "step"), allowing(300.0), since=1000.0)
    assert signs.left(1, 1030.0) == 270.0
    beats = 6
    assert signs.left(1, 1290.0) == 300.0
    assert signs.left(1, 1590.0) == 0.0


def test_a_rank_that_saves_may_be_silent_as_long_as_saving_may_last() -> None:
    """30 minutes; what is stuck in there is the supervisor's to end."""
    signs = Signs(lambda rank: Sign(5, "saving"), allowing(300.0), since=1000.0)
    assert signs.left(0, 1400.0) == 1800.0 - 400.0


def test_who_asked_for_longer_collectives_gets_longer_barriers() -> None:
    assert patience(300.0, 0.0) == 300.0
    assert patience(300.0, 7200.0) == 7200.0
    assert patience(None, 0.0) == math.inf


def test_alone_a_barrier_is_the_accelerators_own_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the process group was destroyed: the guard starts nothing then."""
    waited = []

    class Accelerator:
        def wait_for_everyone(self) -> None:
            waited.append(True)

    monkeypatch.setattr(peers, "ranks", lambda: None)
    monkeypatch.setattr(barriers, "watcher", lambda: pytest.fail("something was watched"))
    barriers.barrier(Accelerator())
    assert waited == [True]


def test_alone_a_collective_is_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result, its errors and its name."""
    monkeypatch.setattr(peers, "ranks", lambda: None)
    monkeypatch.setattr(barriers, "watcher", lambda: pytest.fail("something was watched"))

    def gather(value: int) -> int:
        return 7 // value

    bounded = barriers.collective(gather)
    assert bounded(1) == 7
    assert bounded.__name__ == "gather"
    with pytest.raises(ZeroDivisionError):
        bounded(0)
