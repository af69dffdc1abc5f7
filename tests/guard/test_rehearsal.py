"""Laws of what a fresh worker does again, and of the proof that it goes on as the one before it would have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard.guard.rehearsal import CHECK, WARM_UP, GoOnWith, Past, draws_its_own, same


def past(*batches: int, epochs: int = 1) -> Past:
    """What a worker has delivered that loaded such samples in each of so many epochs; its states are their sums."""
    known, drawn = Past(), 0
    for epoch in range(epochs):
        if epoch:
            known.begins_epoch()
        for sample in batches:
            drawn += sample
            known.delivers([sample], f"batch of {sample}", (drawn,))
    return known


def test_a_worker_that_has_delivered_nothing_is_followed_by_a_fresh_one() -> None:
    """It drew no number that anybody has seen, and its successor starts with the same."""
    known = past()
    assert known.messages() == []
    assert not known.doubt()


def test_one_batch_is_fetched_again_and_compared() -> None:
    """From the states that every worker of its number starts with; then it goes on with those after the batch."""
    assert past(3).messages() == [(CHECK, [3]), GoOnWith((3,))]


def test_of_many_batches_the_first_and_the_last_are_fetched_again() -> None:
    """The first brings the copy of the dataset into the epoch, and the last, from its own states, is the proof."""
    known = past(3, 4, 5)
    assert known.messages() == [(WARM_UP, [3]), GoOnWith((7,)), (CHECK, [5]), GoOnWith((12,))]
    assert not known.doubt()


def test_the_first_batch_of_a_later_epoch_is_fetched_twice() -> None:
    """Once to bring the copy of the dataset into the epoch and once, from the states before it, for the proof."""
    known = past(3, epochs=2)
    assert known.messages() == [(WARM_UP, [3]), GoOnWith((3,)), (CHECK, [3]), GoOnWith((6,))]
    assert not known.doubt()


def test_an_older_worker_without_a_batch_in_its_epoch_leaves_a_doubt() -> None:
    """Its copy of the dataset may have learned what a fresh one has not, and no batch of this epoch can tell."""
    known = past(3, 4)
    known.begins_epoch()
    assert known.messages() == [GoOnWith((7,))]
    assert "lived for epochs" in known.doubt()


def test_an_epoch_that_begins_before_anything_was_delivered_makes_nobody_older() -> None:
    """Such a worker has nothing that a fresh one has not."""
    known = Past()
    known.begins_epoch()
    assert known.messages() == []
    assert not known.doubt()


def test_a_doubt_is_over_with_the_first_batch_of_the_epoch() -> None:
    """From then on a batch can be compared."""
    known = past(3, 4)
    known.begins_epoch()
    known.delivers([5], "batch of 5", (12,))
    assert not known.doubt()


def test_the_last_batch_is_what_is_compared() -> None:
    """And that it is another is said in words."""
    known = past(3, 4)
    assert not known.differs("batch of 4", (7,))
    assert "not the same" in known.differs("batch of 3", (7,))


def test_what_is_drawn_after_the_last_batch_is_compared_too() -> None:
    """A batch that draws nothing proves nothing of the next one."""
    assert "other random numbers" in past(3, 4).differs("batch of 4", (8,))


@pytest.mark.parametrize(
    "hidden", [random.Random(1), {"in": [random.Random(1)]}, SimpleNamespace(its=random.Random(1))]
)
def test_a_generator_of_the_datasets_own_is_found(hidden: object) -> None:
    """Its state comes with no batch."""
    dataset = SimpleNamespace(length=3, inner=SimpleNamespace(held=hidden))
    assert draws_its_own(dataset)
    dataset.inner.held = dataset
    assert not draws_its_own(dataset)


def test_a_batch_that_cannot_be_compared_is_a_doubt_and_no_error() -> None:
    """The training goes on; what a batch may be is its dataset's choice."""
    known = Past()
    for _ in range(2):
        knot = SimpleNamespace()
        knot.itself = knot
        assert known.batch is None or "cannot be compared" in known.differs(knot, (1,))
        known.delivers([1], knot, (1,))


class Tagged(dict[str, Any]):
    """A mapping of another type."""


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


ALIKE: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "numbers": lambda: [1, 2.5, 1j, True],
    "nan": lambda: [math.nan, -math.inf],
    "texts": lambda: ("caption", b"bytes"),
    "nested": lambda: {"images": [(1, {"a": [2]})], "names": ["x"]},
    "objects": lambda: SimpleNamespace(shape=(3, 4), inner=SimpleNamespace(at=1.5)),
    "empty": lambda: [{}, [], ()],
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_what_is_made_twice_alike_is_the_same(make: Callable[[], object]) -> None:
    """Through containers and plain objects, and a NaN is equal to itself."""
    assert same(make(), make())


UNLIKE = {
    "numbers": (1, 2),
    "zeros of two signs": (0.0, -0.0),
    "an int and a float": (1, 1.0),
    "an int and a bool": (1, True),
    "a list and a tuple": ([1], (1,)),
    "lengths": ([1, 2], [1]),
    "keys": ({"a": 1}, {"b": 1}),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "types of mappings": ({"a": 1}, Tagged(a=1)),
    "deep inside": ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
    "attributes": (SimpleNamespace(at=1), SimpleNamespace(at=2)),
    "one more attribute": (SimpleNamespace(at=1), SimpleNamespace(at=1, to=2)),
    "what cannot be compared": (Slotted(1), Slotted(1)),
}


@pytest.mark.parametrize(("one", "other"), UNLIKE.values(), ids=UNLIKE)
def test_what_differs_or_cannot_be_compared_is_not_the_same(one: object, other: object) -> None:
    """Bit for bit means types, signs and orders too; and a doubt is better than a wrong claim."""
    assert not same(one, other)
    assert not same([one], [other])


def test_arrays_are_compared_bit_by_bit() -> None:
    """Type, shape and every bit; their memory may be laid out in another way."""
    numpy = pytest.importorskip("numpy")
    made = numpy.arange(6.0).reshape(2, 3)
    made[1, 1] = numpy.nan
    assert same(made, made.copy())
    assert same(made, numpy.asfortranarray(made))
    assert same(numpy.array(1.5), numpy.array(1.5))
    assert same(numpy.float32(1.5), numpy.float32(1.5))
    assert not same(numpy.int64(1), numpy.int64(2))
    assert not same(made, made.astype("float32"))
    assert not same(made, made.reshape(3, 2))
    assert not same(numpy.zeros(2), -numpy.zeros(2))
    assert not same({"array": made}, {"array": made + 1})
