"""Laws of the DataLoader that need torch: it is torch's own, and gives what torch's gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import fluxguard

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    """Only when these tests run: importing torch takes a second, which the unit tests do not have."""
    pytest.importorskip("torch")


class Squares:
    """A map-style dataset that draws a random number for each sample."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        import torch

        return index * index + torch.rand(())


def _twice(make: Any, **options: Any) -> list[Any]:
    import torch

    torch.manual_seed(7)
    loader = make(Squares(), batch_size=4, **options)
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    return [*epochs, torch.rand(3).tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "num_workers": 2},
        {"shuffle": True, "num_workers": 2, "persistent_workers": True, "drop_last": True},
        {"num_workers": 2},
    ],
    ids=str,
)
def test_batches_order_and_random_numbers_are_torchs(options: dict[str, Any]) -> None:
    """Two epochs, and the state of the global generator after them, are what torch's own loader gives."""
    import torch

    assert _twice(fluxguard.DataLoader, **options) == _twice(torch.utils.data.DataLoader, **options)


def test_it_is_a_real_torch_loader() -> None:
    """accelerate rebuilds loaders from their attributes, so ours must have torch's class and attributes."""
    import torch

    loader = fluxguard.DataLoader(Squares(), 4, True, num_workers=2)
    assert type(loader) is torch.utils.data.DataLoader
    assert loader.batch_size == 4


def test_without_workers_their_options_are_dropped() -> None:
    """FluxGym asks for persistent workers whatever their number; torch refuses that with none."""
    loader = fluxguard.DataLoader(Squares(), num_workers=0, persistent_workers=True, timeout=5, prefetch_factor=2)
    assert len(list(itertools.islice(loader, 2))) == 2


@pytest.mark.parametrize(
    ("cuda", "options", "pinned"),
    [
        (True, {"num_workers": 1}, True),
        (True, {"num_workers": 1, "pin_memory": False}, False),
        (True, {}, False),
        (False, {"num_workers": 1}, False),
        (False, {"num_workers": 1, "pin_memory": True}, True),
    ],
    ids=str,
)
def test_batches_are_pinned_where_cuda_is_unless_the_caller_chose(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, options: dict[str, Any], pinned: bool
) -> None:
    """accelerate, which rebuilds the loader, keeps it."""
    import torch

    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    loader = fluxguard.DataLoader(Squares(), **options)
    monkeypatch.undo()
    assert loader.pin_memory is pinned
    assert accelerate.Accelerator(cpu=True).prepare(loader).pin_memory is pinned


def test_a_context_object_of_the_callers_own_is_kept() -> None:
    """Whoever chose a context has a reason."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    loader = fluxguard.DataLoader(Squares(), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context


def test_an_iterator_that_is_left_early_leaves_no_wait() -> None:
    """A trainer that breaks out of an epoch waits for no batch any more."""
    from fluxguard.guard.watcher import watcher

    for _ in fluxguard.DataLoader(Squares(), num_workers=2):
        break
    assert not watcher()._waits._open


def test_an_iterable_dataset_ends_as_torchs_does() -> None:
    """Workers that ran out are no stuck workers."""
    import torch

    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    ours = sorted(int(x) for x in fluxguard.DataLoader(Endless(), num_workers=2))
    assert ours == [0, 0, 1, 1, 2, 2]
