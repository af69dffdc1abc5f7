"""Laws of the DataLoader that need torch: it is torch's own, and gives what torch's gives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fluxguard
from fluxguard.guard.rehearsal import same
from fluxguard.rundir import AGAIN
from tests.conftest import FAULTS, Spawn, Spawned

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
    from fluxguard.guard.batch_wait import WHAT
    from fluxguard.guard.watcher import watcher

    for _ in fluxguard.DataLoader(Squares(), num_workers=2):
        break
    assert WHAT not in [wait.what for wait in watcher()._waits._open]


def test_an_iterable_dataset_ends_as_torchs_does() -> None:
    """Workers that ran out are no stuck workers."""
    import torch

    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    ours = sorted(int(x) for x in fluxguard.DataLoader(Endless(), num_workers=2))
    assert ours == [0, 0, 1, 1, 2, 2]


TENSORS: dict[str, Callable[[Any], Any]] = {
    "with a NaN": lambda torch: torch.tensor([1.0, float("nan")]),
    "of no dimension": lambda torch: torch.tensor(1.5),
    "empty": lambda torch: torch.zeros(0, 3),
    "of bool": lambda torch: torch.tensor([[True], [False]]),
    "of bfloat16": lambda torch: torch.ones(3, dtype=torch.bfloat16),
    "transposed": lambda torch: torch.arange(6.0).reshape(2, 3).T,
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors_are_the_same_bit_for_bit(make: Callable[[Any], Any]) -> None:
    """Alone and inside of what a dataset puts together; of another type, shape or content they are not."""
    import torch

    one, other = make(torch), make(torch)
    assert same(one, other)
    assert same({"images": [one]}, {"images": [other]})
    assert not same(one, other.to(torch.float64))
    assert not same(one, other[None])
    assert not one.numel() or not same(one, torch.zeros_like(other))


def test_zeros_of_two_signs_are_two_tensors() -> None:
    """They are equal numbers, and other bits."""
    import torch

    assert not same(torch.zeros(2), -torch.zeros(2))


@pytest.fixture
def heals(spawn: Spawn, tmp_path: Path) -> Callable[..., Spawned]:
    """Start the program of failing workers with small limits."""

    def start(*how: str, first_batch: float = 20.0, **limits: Any) -> Spawned:
        path = tmp_path / "limits.json"
        waits = {"batch": 1.0, "first_batch": first_batch}
        path.write_text(json.dumps({"version": 1, "wait": waits, **limits}))
        return spawn(FAULTS / "heals.py", *how, env={"FLUXGUARD_LIMITS": str(path)})

    return start


FAULTS_OF_WORKERS = ("killed", "stopped", "exits")


@pytest.mark.parametrize("how", ["", "persistent"])
def test_a_healed_epoch_gives_what_an_undisturbed_one_gives(heals: Callable[..., Spawned], how: str) -> None:
    """Bit for bit, whatever its workers draw from python, numpy and torch; and main's random states are the same."""
    program = heals(*how.split(), *FAULTS_OF_WORKERS)
    assert program.ends() == 0, program.output
    assert program.output.count("goes on bit for bit") == len(FAULTS_OF_WORKERS)
    for fault in FAULTS_OF_WORKERS:
        assert f"{fault} the same met" in program.output
    assert not program.living()


@pytest.mark.parametrize("how", ["", "persistent"])
def test_a_spawned_worker_that_is_replaced_thrice_gives_what_a_forked_one_gives(
    heals: Callable[..., Spawned], how: str
) -> None:
    """Killed, stopped and exiting in one epoch, against an undisturbed one: how workers start changes no batch."""
    program = heals("spawn", *how.split(), *FAULTS_OF_WORKERS)
    assert program.ends(within=55.0) == 0, program.output
    assert f"{' '.join(FAULTS_OF_WORKERS)} the same met" in program.output
    assert "maybe not" not in program.output


@pytest.mark.parametrize("how", ["", "persistent"])
def test_a_dataset_with_a_state_of_its_own_leaves_a_doubt(heals: Callable[..., Spawned], how: str) -> None:
    """What it has counted dies with its worker, and a batch that is fetched again shows it."""
    program = heals("counts", *how.split(), "killed")
    assert program.ends() == 0, program.output
    assert "maybe not identically: a batch that was fetched again is not the same" in program.output


@pytest.mark.parametrize(("how", "code"), [("", 1), ("begin", AGAIN)])
def test_strict_ends_where_a_doubt_is(heals: Callable[..., Spawned], how: str, code: int) -> None:
    """A trainer with the code that asks for another attempt, any other process with an error; both name the doubt."""
    program = heals("counts", *how.split(), "killed", strict=True)
    assert program.ends() == code, program.output
    doubt = "; the training would not go on identically: a batch that was fetched again is not the same"
    assert doubt in program.output
    assert "put right" not in program.output


@pytest.mark.parametrize(
    ("fault", "heal", "raised"),
    [("killed", 2, "WorkerDied: DataLoader worker"), ("stopped", 1, "WorkerStuck: a batch from the loader")],
)
def test_after_so_many_heals_it_is_an_error(heals: Callable[..., Spawned], fault: str, heal: int, raised: str) -> None:
    """A worker that fails at each attempt would be replaced for ever."""
    program = heals("always", fault, max_heals=heal, first_batch=3.0)
    assert program.ends() == 1, program.output
    assert f"fluxguard.errors.{raised}" in program.output
    assert not program.living()
