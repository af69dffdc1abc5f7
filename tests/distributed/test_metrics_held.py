"""Laws of what ranks compare before they compute a metric together: from what each says alone, all decide alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxguard.distributed.measures.holdings import Held, agree, only_some
from fluxguard.errors import InputError, RanksDisagree

ROOM = 1024


def one(words: str = "SumMetric, sum_value float32 scalar", updates: tuple[int, ...] = (4,), **rest: Any) -> Held:
    rest = {"lists": (), "cached": (False,) * len(updates), **rest}
    return Held.of(words, updates=updates, **rest)


def test_ranks_that_hold_the_same_compute_all_of_it() -> None:
    """Nothing is cached and no list is to be joined."""
    plan = agree("loss", {0: one(), 1: one()})
    assert plan.again == (False,) * 0 + (True,)
    assert plan.lists == ()


def test_what_every_rank_has_cached_is_not_computed_again() -> None:
    """Each part by itself."""
    cached = {0: one(updates=(1, 1), cached=(True, True)), 1: one(updates=(1, 1), cached=(True, False))}
    assert agree("loss", cached).again == (False, True)


@pytest.mark.parametrize(
    ("cached", "ranks"),
    [([(True,), (True,)], ()), ([(False,), (False,)], ()), ([(True,), (False,)], (0,)), ([(False,), (True,)], (1,))],
)
def test_a_result_on_some_ranks_only_is_told_of_those(cached: list[tuple[bool, ...]], ranks: tuple[int, ...]) -> None:
    """It is what makes a compute of torchmetrics wait for ever."""
    assert only_some({rank: one(cached=has) for rank, has in enumerate(cached)}) == ranks


def test_another_metric_is_named_on_both_sides() -> None:
    """With the words of each rank."""
    with pytest.raises(RanksDisagree, match="different metrics under 'fid'") as caught:
        agree("fid", {0: one("Fid, sum float64 [4]"), 1: one("Fid, sum float64 [8]")})
    assert caught.value.said == ("rank 0: Fid, sum float64 [4]", "rank 1: Fid, sum float64 [8]")


def test_long_words_are_shown_from_where_they_differ() -> None:
    """A collection of many metrics has more of them than a message should."""
    same = "; ".join(f"Metric{number}, value float32 scalar" for number in range(20))
    with pytest.raises(RanksDisagree) as caught:
        agree("all", {0: one(f"{same}; A, x int64 scalar"), 1: one(f"{same}; B, x int64 scalar")})
    assert caught.value.said == ("rank 0: ...A, x int64 scalar", "rank 1: ...B, x int64 scalar")


def test_different_numbers_of_updates_are_an_error_unless_they_are_meant() -> None:
    """A rank that missed an update is a wrong value; one with fewer batches is not."""
    held = {0: one(updates=(4,)), 1: one(updates=(3,))}
    with pytest.raises(RanksDisagree, match=r"uneven=True\): rank 0: 4, rank 1: 3"):
        agree("loss", held)
    assert agree("loss", held, uneven=True).again == (True,)


def test_states_that_the_group_cannot_move_are_an_error_that_says_what_to_do() -> None:
    """As a state on the CPU is under NCCL; on every rank, whichever of them has it."""
    with pytest.raises(InputError, match=r"on rank 1 sum_value lie on cpu, .*\(nccl\) has no backend.*metric.to"):
        agree("loss", {0: one(), 1: one(stranded="sum_value lie on cpu")}, carries="nccl")


def test_a_rank_without_items_takes_their_type_from_the_others() -> None:
    """Those that have any must agree."""
    held = {0: one(lists=("", "int64.3")), 1: one(lists=("float32", "int64.3"))}
    assert agree("all", held).lists == ("float32", "int64.3")
    with pytest.raises(RanksDisagree, match="rank 0: int64, rank 1: float32"):
        agree("all", {0: one(lists=("int64",)), 1: one(lists=("float32",))})


def test_it_survives_its_way_however_much_there_is_to_say() -> None:
    """What does not fit is cut; what decides is never cut, but turned into a digest."""
    many = one("; ".join(f"Metric{number} \u00e9" for number in range(500)), updates=tuple(range(300)))
    many = replace(many, cached=(False,) * 3)
    read = Held.from_bytes(many.to_bytes(ROOM))
    assert len(many.to_bytes(ROOM)) <= ROOM
    assert replace(read, words="") == replace(many, words="")
    others = one(many.words, updates=(*range(299), 7))
    assert others.structure != one(many.words, updates=tuple(range(300))).structure


def test_little_to_say_comes_over_whole() -> None:
    """To the last word."""
    assert Held.from_bytes(one(stranded="x").to_bytes(ROOM)) == one(stranded="x")
