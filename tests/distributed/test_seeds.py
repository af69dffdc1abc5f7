"""Laws of seeds: another stream on each rank, the same one in each attempt, and a model that is alike everywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy
import pytest
import torch

from fluxguard.distributed import world
from fluxguard.distributed.models import seeds
from fluxguard.guard.randoms import random_states, restore


@pytest.fixture(autouse=True)
def _unmoved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(seeds, "_base", None)
    before = random_states()
    yield
    restore(before)


def on_rank(rank: int) -> Any:
    """Stand on a rank."""
    return patch.object(world, "current", lambda: world.World(rank=rank, size=4))


def draws() -> tuple[float, float, float]:
    """Draw from all three sources."""
    return random.random(), float(numpy.random.random()), float(torch.rand(()))


def test_each_rank_draws_other_numbers_and_the_same_ones_in_each_attempt() -> None:
    """From every source."""
    drawn = []
    for rank in (0, 1, 2, 3, 0, 1, 2, 3):
        with on_rank(rank):
            seeds.seed(7)
        drawn.append(draws())
    assert drawn[:4] == drawn[4:]
    assert len({number for numbers in drawn for number in numbers}) == 12


def test_no_rank_has_the_seed_of_another_base() -> None:
    """base + rank would make rank 1 of one training rank 0 of another."""
    assert len({seeds.of_rank(base, rank) for base in range(50) for rank in range(8)}) == 400


def test_without_a_base_each_training_has_its_own() -> None:
    """Drawn once, by rank 0."""
    assert len({seeds.seed() for _ in range(4)}) == 4


def test_what_is_built_is_alike_on_every_rank_and_the_rank_draws_on_as_if_nothing_was() -> None:
    """By the base alone."""
    built, after = [], []
    for rank, builds in ((0, True), (3, True), (3, False)):
        with on_rank(rank):
            seeds.seed(7)
        if builds:
            with seeds.alike():
                built.append(draws())
        after.append(draws())
    assert built[0] == built[1]
    assert after[0] != after[1] == after[2]


def test_without_a_base_a_block_draws_on() -> None:
    """A training that was never seeded does not begin with the same model every day."""
    random.seed(1)
    with seeds.alike():
        first = random.random()
    with seeds.alike():
        assert random.random() != first


def test_seeding_anew_depends_on_rank_and_place() -> None:
    """For a rank whose random states were not saved."""
    drawn = []
    for rank, step in ((0, 8), (1, 8), (0, 16)):
        with on_rank(rank):
            seeds.reseed(2, step)
        drawn.append(draws())
    assert len(set(drawn)) == 3
