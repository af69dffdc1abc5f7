"""Laws of what another attempt may do otherwise: finite ladders, each rung a command that the trainer accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.launch.flags import Flags
from fluxguard.launch.remedies import (
    FEWER_WORKERS,
    FLUX_MOST_SWAPPED,
    MORE_SWAP,
    NO_SAMPLING,
    REMEDIES,
    after,
    changed,
    net,
)

HEAD = ("python", "-m", "accelerate.commands.launch", "sd/flux_train_network.py")


def rungs(remedy: str, args: str, most: int = FLUX_MOST_SWAPPED, config: dict[str, object] | None = None) -> list[str]:
    """Return the flags after each rung of a remedy, to its end."""
    argv, flags = (*HEAD, *args.split()), Flags(args.split(), Path("/h"), config, "c.toml")
    found = []
    while change := changed(argv, remedy, flags, most_swapped=most):
        assert change.argv[: len(HEAD)] == HEAD
        argv = change.argv
        found.append(" ".join(argv[len(HEAD) :]))
        assert len(found) < 20
    return found


@pytest.mark.parametrize(
    ("args", "config", "expected"),
    [
        ("", {}, ["--max_data_loader_n_workers 1", "--max_data_loader_n_workers 0"]),
        ("--max_data_loader_n_workers 2", {}, ["--max_data_loader_n_workers 1", "--max_data_loader_n_workers 0"]),
        ("--max_data_loader_n_workers=1 --x", {}, ["--x --max_data_loader_n_workers 0"]),
        ("--max_data_loader_n_workers 0", {}, []),
        (
            "--persistent_data_loader_workers --max_data_loader_n_workers 2",
            {},
            [
                "--persistent_data_loader_workers --max_data_loader_n_workers 1",
                "--max_data_loader_n_workers 0",
            ],
        ),
        ("", {"max_data_loader_n_workers": 1}, ["--max_data_loader_n_workers 0"]),
        ("", {"persistent_data_loader_workers": True}, ["--max_data_loader_n_workers 1"]),
    ],
)
def test_workers_become_one_then_none(args: str, config: dict[str, object], expected: list[str]) -> None:
    """Without workers there are no persistent ones: a trainer refuses that; a file's word cannot be taken back."""
    assert rungs(FEWER_WORKERS, args, config=config) == expected


@pytest.mark.parametrize(
    ("args", "config", "expected"),
    [
        ("--sample_every_n_steps 100 --sample_prompts p.txt --x 1", {}, ["--x 1"]),
        ("--sample_at_first --sample_every_n_epochs=2", {}, [""]),
        ("--sample_prompts p.txt", {}, []),  # without an interval nothing is sampled
        ("", {}, []),
        ("--sample_every_n_steps 0", {}, []),
        ("--x", {"sample_every_n_steps": 100}, ["--x --sample_every_n_epochs 1000000"]),
        ("", {"sample_at_first": True}, []),
    ],
)
def test_sampling_is_turned_off_where_it_was_on(args: str, config: dict[str, object], expected: list[str]) -> None:
    """On the command line its flags go; what a file asks for is moved out of reach, or nothing is promised."""
    assert rungs(NO_SAMPLING, args, config=config) == expected


@pytest.mark.parametrize(
    ("args", "most", "swaps"),
    [
        ("", 35, [12, 24, 35]),
        ("--blocks_to_swap 10", 35, [24, 35]),
        ("--blocks_to_swap 28", 35, [35]),
        ("--blocks_to_swap 33", 35, [35]),
        ("--split_mode", 35, [24, 35]),
        ("", 4, [4]),
        ("--blocks_to_swap 35", 35, []),
        ("", 0, []),
        ("--cpu_offload_checkpointing", 35, []),
    ],
)
def test_more_blocks_are_swapped_up_to_what_the_model_has(args: str, most: int, swaps: list[int]) -> None:
    """In three steps at most; a trainer that swaps none, or keeps activations there already, is left as it is."""
    kept = [word for word in args.split() if word == "--split_mode"]
    assert rungs(MORE_SWAP, args, most) == [" ".join([*kept, f"--blocks_to_swap {swap}"]) for swap in swaps]


def test_what_was_taken_is_taken_again_in_the_same_order() -> None:
    """A later supervisor needs only the names."""
    argv = (*HEAD, "--max_data_loader_n_workers", "4", "--sample_at_first")
    flags = Flags(argv[len(HEAD) :], Path("/h"))
    taken = [FEWER_WORKERS, MORE_SWAP, NO_SAMPLING, FEWER_WORKERS, MORE_SWAP]
    again = after(argv, taken, flags, most_swapped=35)
    assert again[len(HEAD) :] == ("--max_data_loader_n_workers", "0", "--blocks_to_swap", "24")


def test_several_rungs_are_told_as_the_one_change_that_they_are() -> None:
    """From what the command says to what holds now; what is no value of a flag is told once as it is."""
    said = ["--blocks_to_swap 12 (was 0)", "without --sample_at_first", "--max_data_loader_n_workers 1 (was 8)"]
    said += ["--blocks_to_swap 24 (was 12)", "without --sample_at_first", "--blocks_to_swap 35 (was 24)"]
    assert net(said) == (
        "--blocks_to_swap 35 (was 0)",
        "without --sample_at_first",
        "--max_data_loader_n_workers 1 (was 8)",
    )
    assert net([]) == ()


def test_a_command_without_a_known_trainer_is_never_changed() -> None:
    """Its flags are its own."""
    argv = ("python", "mine.py", "--max_data_loader_n_workers", "4")
    assert all(changed(argv, remedy, Flags(argv[2:], Path("/h")), most_swapped=35) is None for remedy in REMEDIES)


def test_the_flags_that_changed_are_told_with_what_they_were() -> None:
    """In the ledger, on the page and on the command line."""
    argv = (*HEAD, "--max_data_loader_n_workers", "1", "--persistent_data_loader_workers")
    change = changed(argv, FEWER_WORKERS, Flags(argv[len(HEAD) :], Path("/h")))
    assert change is not None
    assert change.flags == ("--max_data_loader_n_workers 0 (was 1)", "without --persistent_data_loader_workers")
