"""Laws of what a barrier that all have passed tells."""

from __future__ import annotations

from typing import Any

import pytest

from fluxguard import limits
from fluxguard.guard import barrier, peers
from fluxguard.heartbeat import Heart


class Group:
    """Two ranks, of which the other one comes at the third look."""

    rank, world = 0, 2

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.looks = 0

    def store(self) -> Group:
        return self

    def timeout(self) -> float:
        return 600.0

    def add(self, key: str, amount: int) -> int:
        """As torch's store."""
        self.looks += not amount
        self.sums[key] = self.sums.get(key, 0) + amount
        return self.sums[key] + (self.looks >= 3)


def meet(limit: float) -> None:
    group: Any = Group()
    barrier._meet(group, limit)


def test_a_barrier_that_was_waited_for_is_learned_from(heart: Heart) -> None:
    """In every phase: how long the others may take does not depend on it."""
    meet(30)
    assert 0 < heart.longest_barrier < 30


def test_a_barrier_in_which_the_machine_slept_is_not_learned_from(
    monkeypatch: pytest.MonkeyPatch, heart: Heart
) -> None:
    """Its time says nothing."""
    slept = iter([0.0, 3600.0])
    monkeypatch.setattr(barrier, "lost", lambda: next(slept))
    meet(30)
    assert heart.longest_barrier == 0


def test_a_barrier_that_was_allowed_more_than_its_limit_is_not_learned_from(
    monkeypatch: pytest.MonkeyPatch, heart: Heart
) -> None:
    """It was what could be seen of the others that allowed it, and that will be seen again."""
    times = iter([0.0, 0.0])
    monkeypatch.setattr(barrier, "awake", lambda: next(times, 60.0))
    meet(30)
    assert heart.longest_barrier == 0


@pytest.mark.parametrize(("chosen", "unseen"), [(None, 570.0), (400.0, 570.0), (600.0, 600.0), (20.0, 20.0)])
def test_what_cannot_be_seen_gets_less_time_only_where_somebody_asked_for_less(
    chosen: float | None, unseen: float
) -> None:
    """A limit that has grown, because such waits take long here, must not end one earlier that shows nothing."""
    group: Any = Group()
    with limits.use(barrier=chosen or 300.0):
        limit = limits.current().wait.barrier
        assert limit is not None
        assert peers.signs(limit, group.timeout(), 0.0)._allowed(None) == unseen
