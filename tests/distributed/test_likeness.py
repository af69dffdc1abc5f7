"""Laws of comparing models: equal ones cost one short meeting, and a difference is named, with who has it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fluxguard.distributed.meetings.meeting import PAYLOAD
from fluxguard.distributed.models.likeness import Part, _advice, fingerprint, first_difference, in_words, parts_of
from tests.distributed.lockstep import Meetings


def differences(models: list[list[Part]]) -> tuple[list[list[str] | None], Meetings]:
    """Return what each rank finds, and the meetings it took."""
    meetings = Meetings(len(models))
    found = meetings.run(lambda rank: first_difference(models[rank], lambda said: meetings.exchange(rank, said)))
    return found, meetings


def parts(count: int, **other: str) -> list[Part]:
    """Return the parts of a model, some of them with other words."""
    return [Part(other.get(f"p{number}", f"p{number}: 4"), "aa") for number in range(count)]


def test_equal_models_meet_once() -> None:
    """And say some bytes only."""
    found, meetings = differences([parts(1000)] * 3)
    assert (found, meetings.count, meetings.longest) == ([None] * 3, 1, 8)


@pytest.mark.parametrize("at", [0, 1, 63, 64, 500, 998, 999])
def test_the_first_part_that_differs_is_found_in_a_few_meetings(at: int) -> None:
    """Wherever it is; every rank finds the same, and none says more than fits."""
    found, meetings = differences([parts(1000), parts(1000, **{f"p{at}": "odd: 5"}), parts(1000)])
    assert found[0] == found[1] == found[2] == [f"p{at}: 4, values aa", "odd: 5, values aa", f"p{at}: 4, values aa"]
    assert meetings.count <= 6
    assert meetings.longest <= PAYLOAD


@pytest.mark.parametrize(("one", "other"), [(3, 4), (0, 1), (200, 100)])
def test_a_model_that_has_more_parts_differs_behind_the_other_ones_end(one: int, other: int) -> None:
    """The shorter one says that it has no such part."""
    found, _ = differences([parts(one), parts(other)])
    assert found[0] is not None
    assert sorted(found[0])[0] == "no such parameter"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["a", "b"], ["rank 1 has b", "rank 0 has a"]),
        (["a", "a", "b"], ["rank 2 has b", "ranks 0, 1 have a"]),
        (["b", "a", "a"], ["rank 0 has b", "ranks 1, 2 have a"]),
        (["a", "b", "c"], ["rank 1 has b", "rank 2 has c", "rank 0 has a"]),
    ],
)
def test_who_differs_from_most_is_named_first(said: list[str], words: list[str]) -> None:
    """Where no two agree more than others, who differs from rank 0."""
    assert in_words(said) == words


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64]
)
def test_a_fingerprint_knows_the_values_and_their_places(dtype: torch.dtype) -> None:
    """Of every type."""
    values = torch.tensor([1, 0, 1, 1, 0, 0]).to(dtype)
    before = values.clone()
    assert fingerprint(values) == fingerprint(values.clone())
    assert torch.equal(values, before)
    negated = torch.tensor([-1, 0, 1, -1, 0, 0]).to(dtype)
    others = [values.flip(0), values[1:], torch.tensor([1, 0, 1, 1, 0, 1]).to(dtype)]
    for other in others if dtype is torch.bool else [*others, negated]:
        assert fingerprint(other) != fingerprint(values)


def test_a_fingerprint_takes_any_layout_and_size() -> None:
    """Numbers, nothing at all, what is not in one piece, and what is larger than a piece of the work."""
    square = torch.arange(16.0).reshape(4, 4)
    assert fingerprint(square.t()) == fingerprint(square.t().contiguous()) != fingerprint(square)
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
    assert fingerprint(torch.empty(0))
    large = torch.zeros(1 << 18)
    other = large.clone()
    other[-1] = 1e-30
    assert fingerprint(large) != fingerprint(other)


def test_names_shapes_types_and_what_is_trained_are_compared() -> None:
    """Buffers too; their values only where that is asked for."""
    model = nn.BatchNorm1d(3)
    model.weight.requires_grad = False
    words = [part.words for part in parts_of(model, values=False)]
    assert words == [
        "weight: 3, float32, frozen",
        "bias: 3, float32, trained",
        "running_mean: 3, float32, buffer",
        "running_var: 3, float32, buffer",
        "num_batches_tracked: a number, int64, buffer",
    ]
    assert not any(part.values for part in parts_of(model, values=False))
    assert all(part.values for part in parts_of(model, values=True))


@pytest.mark.parametrize(
    ("others", "advice"), [("w: 3, float32, trained, values 2", "load_or_init"), ("w: 4, float32, trained", "same way")]
)
def test_what_to_do_about_a_difference_depends_on_what_differs(others: str, advice: str) -> None:
    assert advice in _advice(["w: 3, float32, trained, values 1", others])
