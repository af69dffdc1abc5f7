"""Laws of what a launcher says: all of it is read, and whatever cannot be used is one error that names the variable."""

from __future__ import annotations

import pytest

from fluxguard.distributed.start import devices, environment
from fluxguard.distributed.start.devices import Found
from fluxguard.errors import SetupFailed

GOOD = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"}
TWO_GPUS = Found(devices=("GPU-a", "GPU-b"), nccl="2.21.5")


def test_what_torchrun_sets_is_read() -> None:
    """Its store is the launcher's own."""
    place = environment.read({**GOOD, "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (1, 2, 1, 2)
    assert (place.door, place.by_launcher) == ("node-a:29500", True)


def test_a_process_without_a_launcher_has_no_ranks() -> None:
    """Whatever else is in its environment."""
    assert environment.read({"MASTER_ADDR": "node-a", "HOME": "/root"}) is None
    assert environment.read({"RANK": "", "WORLD_SIZE": " "}) is None


def test_a_world_of_one_needs_no_address() -> None:
    """Nor a rank."""
    place = environment.read({"WORLD_SIZE": "1"})
    assert place is not None
    assert (place.rank, place.size) == (0, 1)


@pytest.mark.parametrize(
    ("change", "variable", "words"),
    [
        ({"RANK": None}, "RANK", "missing"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE", "missing"),
        ({"WORLD_SIZE": None, "SLURM_NTASKS": "2"}, "WORLD_SIZE", "$SLURM_NTASKS"),
        ({"RANK": None, "SLURM_PROCID": "1"}, "RANK", "$SLURM_PROCID"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR", "missing"),
        ({"MASTER_ADDR": "  "}, "MASTER_ADDR", "missing"),
        ({"MASTER_PORT": None}, "MASTER_PORT", "missing"),
        ({"RANK": "one"}, "RANK", "'one'"),
        ({"RANK": "-1"}, "RANK", "0 or more"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE", "1 or more"),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE", "'2.0'"),
        ({"RANK": "2"}, "RANK", "WORLD_SIZE is 2"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK", "'x'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK", "WORLD_SIZE is 2"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK", "LOCAL_WORLD_SIZE is 1"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE", "only 2"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT", "1 or more"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT", "65535"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT", "'http'"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, str | None], variable: str, words: str) -> None:
    """The variable, what it is, and what to do; the rank as far as it is known."""
    known = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(SetupFailed, match=variable) as caught:
        environment.read(known)
    assert caught.value.variable == variable
    assert words in str(caught.value)
    rank = known.get("RANK", "")
    assert caught.value.rank == (int(rank) if rank.isdigit() else None)
    assert ("rank " if rank.isdigit() else "process ") in caught.value.source


@pytest.mark.parametrize(
    ("method", "door"),
    [("tcp://node-b:400", "node-b:400"), ("file:///tmp/meet", "/tmp/meet"), ("env://", "node-a:29500")],
)
def test_arguments_win_over_the_environment(method: str, door: str) -> None:
    """As torch.multiprocessing.spawn gives them; then all ranks are on one machine."""
    place = environment.read({**GOOD, "LOCAL_RANK": ""}, rank=0, world_size=4, init_method=method)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size, place.door) == (0, 4, 0, 4, door)


@pytest.mark.parametrize("method", ["tcp://node-b", "tcp://node-b:x", "file://", "http://node-b:1"])
def test_a_place_to_meet_that_is_none_is_refused(method: str) -> None:
    """Naming the argument."""
    with pytest.raises(SetupFailed) as caught:
        environment.read(GOOD, init_method=method)
    assert caught.value.variable == "init_method"


def test_with_a_store_no_address_is_needed() -> None:
    """The ranks meet in it."""
    place = environment.read({}, rank=1, world_size=2, has_store=True)
    assert place is not None
    assert (place.rank, place.address) == (1, "")


@pytest.mark.parametrize(
    ("found", "known", "asked", "chosen"),
    [
        (TWO_GPUS, {}, None, "nccl"),
        (Found(), {}, None, "gloo"),
        (Found(devices=("GPU-a",)), {}, None, "gloo"),
        (TWO_GPUS, {"ACCELERATE_USE_CPU": "true"}, None, "gloo"),
        (TWO_GPUS, {}, "gloo", "gloo"),
        (TWO_GPUS, {}, "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
    ],
)
def test_gpus_take_nccl_and_processors_gloo(
    found: Found, known: dict[str, str], asked: str | None, chosen: str
) -> None:
    """Unless another one is asked for."""
    assert devices.backend(found, known, asked) == chosen


def test_a_device_is_a_number() -> None:
    """That of the local rank, or of the only GPU that a process was given; none on processors."""
    assert devices.device(TWO_GPUS, "nccl", {}, 3, 1) == 1
    assert devices.device(Found(devices=("GPU-b",), nccl="2"), "nccl", {"CUDA_VISIBLE_DEVICES": "1"}, 3, 1) == 0
    assert devices.device(TWO_GPUS, "gloo", {}, 3, 1) is None


@pytest.mark.parametrize(
    ("found", "local", "variable"),
    [(TWO_GPUS, 2, "LOCAL_RANK"), (TWO_GPUS, None, "LOCAL_RANK"), (Found(nccl="2"), 0, "CUDA_VISIBLE_DEVICES")],
)
def test_a_rank_without_a_gpu_of_its_own_is_named(found: Found, local: int | None, variable: str) -> None:
    """With what the process sees."""
    with pytest.raises(SetupFailed, match=r"CUDA_VISIBLE_DEVICES|GPUs are visible") as caught:
        devices.device(found, "nccl", {"CUDA_VISIBLE_DEVICES": ""}, 5, local)
    assert (caught.value.variable, caught.value.rank) == (variable, 5)


@pytest.mark.parametrize(
    ("index", "visible", "uuid", "bus", "known_as"),
    [
        (1, "3,4", "GPU-x", "PCI 4", "GPU-x"),
        (0, "MIG-1,MIG-2", "GPU-x", "", "MIG-1"),
        (0, None, "", "PCI 4", "PCI 4"),
        (0, None, "", "", ""),
    ],
)
def test_a_gpu_is_known_by_what_tells_it_from_all_others(
    index: int, visible: str | None, uuid: str, bus: str, known_as: str
) -> None:
    """A slice of one by its own name."""
    assert devices.identity(index, visible, uuid, bus) == known_as


def test_only_collectives_of_gpus_need_one_each() -> None:
    """Ranks that speak gloo may share a GPU."""
    assert devices.exclusive("nccl", 1, TWO_GPUS.devices) == "GPU-b"
    assert devices.exclusive("gloo", None, TWO_GPUS.devices) == ""


def test_the_log_shows_what_matters_between_ranks() -> None:
    """And nothing else of the environment, which holds secrets."""
    said = environment.told({**GOOD, "NCCL_DEBUG": "INFO", "HF_TOKEN": "secret"})
    assert "RANK=1" in said
    assert "NCCL_DEBUG=INFO" in said
    assert "secret" not in said
