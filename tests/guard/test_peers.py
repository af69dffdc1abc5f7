"""Laws of meeting other ranks, without any: a dictionary is the store and time stands still."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from fluxguard.guard import barrier as barriers
from fluxguard.guard import peers
from fluxguard.guard.peers import Meeting, Sign, Signs, allowing, patience, unseen_patience


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


def test_a_rank_that_was_never_seen_gets_almost_the_timeout_of_its_group() -> None:
    """It may cache or sample, and nobody sees it; its name still comes before NCCL's own end."""
    signs = Signs(lambda rank: None, allowing(300.0, unseen_patience(300.0, 600.0)), since=1000.0)
    assert signs.left(1, 1300.0) == 270.0
    assert signs.left(1, 1570.0) == 0.0
    assert unseen_patience(300.0, 7200.0) == 6840.0
    assert unseen_patience(300.0, 120.0) == 300.0


@pytest.mark.parametrize("death", [Sign(5, ""), None], ids=["process gone", "heartbeat gone"])
def test_a_death_is_no_sign_of_life(death: Sign | None) -> None:
    """Nor may a dead rank be silent as long as the phase it died in."""
    sign: Sign | None = Sign(5, "saving")
    signs = Signs(lambda rank: sign, allowing(300.0, 570.0), since=1000.0)
    assert signs.left(1, 1100.0) == 1700.0
    sign = death
    assert signs.left(1, 1200.0) == 100.0
    assert signs.left(1, 1300.0) == 0.0


def test_a_first_sign_is_a_sign_of_life() -> None:
    sign: Sign | None = None
    signs = Signs(lambda rank: sign, allowing(300.0, 570.0), since=1000.0)
    assert signs.left(1, 1100.0) == 470.0
    sign = Sign(0, "step")
    assert signs.left(1, 1200.0) == 300.0


class Group:
    """torch.distributed with one group, as far as its timeouts go."""

    default_pg_timeout = timedelta(minutes=30)
    default_pg_nccl_timeout = timedelta(minutes=10)

    def __init__(self, backend: str, timeout: timedelta | None) -> None:
        self.distributed_c10d = self
        self.options = self
        self._backend = backend
        if timeout is not None:
            self._timeout = timeout

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 2

    def get_backend(self) -> str:
        return self._backend

    def _get_default_group(self) -> Group:
        return self

    def _get_backend(self, device: object) -> Group:
        return self


@pytest.mark.parametrize(
    ("backend", "asked", "timeout", "longer"),
    [
        ("nccl", 10, 600, 0),
        ("nccl", 120, 7200, 7200),
        ("gloo", 30, 1800, 0),
        ("nccl", None, 600, 0),
        ("gloo", 5, 300, 0),
    ],
)
def test_the_timeout_of_the_group_is_what_its_user_asked_for(
    monkeypatch: pytest.MonkeyPatch, backend: str, asked: int | None, timeout: float, longer: float
) -> None:
    """Minutes, as --ddp_timeout; where torch does not say, it is torch's own."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str))
    group = peers.Ranks(Group(backend, None if asked is None else timedelta(minutes=asked)))
    assert (group.timeout(), group.longer_timeout()) == (timeout, longer)


def test_a_sign_of_life_begins_the_limit_anew() -> None:
    beats = 5
    signs = Signs(lambda rank: Sign(beats, "step"), allowing(300.0, 570.0), since=1000.0)
    assert signs.left(1, 1030.0) == 270.0
    beats = 6
    assert signs.left(1, 1290.0) == 300.0
    assert signs.left(1, 1590.0) == 0.0


def test_a_rank_that_saves_may_be_silent_as_long_as_saving_may_last() -> None:
    """30 minutes; what is stuck in there is the supervisor's to end."""
    signs = Signs(lambda rank: Sign(5, "saving"), allowing(300.0, 570.0), since=1000.0)
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
