"""Laws of the sampler: a step has the same samples on any number of ranks, and each epoch goes on where it was left."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from torch.utils.data import DistributedSampler

from fluxguard.distributed import world
from fluxguard.distributed.models import sampling
from fluxguard.distributed.models.sampling import Sampler, batch_after
from fluxguard.errors import InputError

SAMPLES = range(100)


def samplers(ranks: int, *, batch_size: int = 4, step_size: int | None = None, shuffle: bool = True) -> list[Sampler]:
    """Return the samplers of all ranks."""
    made = []
    for rank in range(ranks):
        with patch.object(world, "current", lambda rank=rank: world.World(rank=rank, size=ranks)):
            made.append(Sampler(SAMPLES, batch_size=batch_size, step_size=step_size, seed=5, shuffle=shuffle))
    return made


def steps(all_ranks: list[Sampler]) -> list[set[int]]:
    """Return the samples of each optimizer step that is left of an epoch."""
    per_step = all_ranks[0].step_size // len(all_ranks)
    shares = [list(one) for one in all_ranks]
    return [
        {sample for share in shares for sample in share[at : at + per_step]}
        for at in range(0, len(all_ranks[0]), per_step)
    ]


@pytest.mark.parametrize("epoch", [0, 1, 7])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_step_has_the_same_samples_on_any_number_of_ranks(ranks: int, epoch: int) -> None:
    """The incomplete step at the end is left out, and no sample comes twice."""
    alone, many = samplers(1, step_size=16), samplers(ranks, step_size=16)
    for one in (*alone, *many):
        one.set_epoch(epoch)
    assert steps(many) == steps(alone)
    assert len(steps(many)) == 6 == many[0].steps
    assert len(set().union(*steps(many))) == 96
    assert {len(one) for one in many} == {96 // ranks}
    assert many[0].accumulation == 16 // (4 * ranks)


def test_epochs_have_different_orders_as_torch_shuffles_them() -> None:
    """By seed + epoch."""
    ours, theirs = samplers(2)[1], DistributedSampler(SAMPLES, 2, 1, seed=5)  # type: ignore[arg-type, var-annotated]
    orders = []
    for epoch in range(3):
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        orders.append(list(ours))
        assert orders[-1] == list(theirs)[: len(ours)]
    assert orders[0] != orders[1] != orders[2]


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    """Each rank takes every so manyeth sample."""
    assert list(samplers(2, shuffle=False)[1])[:3] == [1, 3, 5]


@pytest.mark.parametrize(("ranks", "batch"), [(1, 12), (2, 6), (4, 3)])
def test_an_epoch_goes_on_where_it_was_left_on_any_number_of_ranks(ranks: int, batch: int) -> None:
    """With the steps that were left; other epochs are whole."""
    whole = steps(samplers(2, step_size=16))
    left = samplers(ranks, step_size=16)
    for one in left:
        one.go_on(0, batch)
        one.set_epoch(0)
        assert one.begun == batch
    assert steps(left) == whole[3:]
    left[0].set_epoch(1)
    assert (left[0].begun, len(left[0])) == (0, 96 // ranks)


@pytest.mark.parametrize(("ranks", "step_size"), [(1, 6), (2, 12), (2, 4), (3, 16)])
def test_a_step_that_is_no_whole_number_of_batches_is_refused(ranks: int, step_size: int) -> None:
    """With what would do."""
    with pytest.raises(InputError, match=f"choose a multiple of {4 * ranks}"):
        samplers(ranks, step_size=step_size)


def test_a_step_larger_than_the_dataset_is_refused() -> None:
    """It would train nothing, silently."""
    with pytest.raises(InputError, match="more than the 100"):
        samplers(1, step_size=104)


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"batch_size": -4, "step_size": -8}, {"step_size": 0}])
def test_a_size_below_one_is_refused_by_its_name(sizes: dict[str, Any]) -> None:
    """Before anything is divided by it."""
    with pytest.raises(InputError, match=f"{next(iter(sizes))}: must be at least 1"):
        Sampler(range(100), **{"batch_size": 4, **sizes})


def test_a_number_of_samples_is_a_number_of_batches_or_none() -> None:
    """In the middle of a batch nothing can begin."""
    assert [batch_after(samples, 4, 2) for samples in (0, 8, 12, 16)] == [0, 1, None, 2]
    assert sampling.accumulation(32, 8, 2) == 2
