"""Laws of comparing programs: another one is seen, no value of an argument is told, what is each rank's own is left."""

from __future__ import annotations

import pytest

from fluxguard.distributed.start import program


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("--lr 1e-4 --epochs 3", "--lr 1e-3 --epochs 3", {"lr"}),
        ("--lr=1e-4", "--lr 1e-4", set()),
        ("--learning-rate 1", "--learning_rate 1", set()),
        ("--scale -1", "--scale -2", {"scale"}),
        ("--amp", "", {"amp"}),
        ("optim.lr=1 +x=2", "optim.lr=2 +x=2", {"optim.lr"}),
        ("fast", "slow", {program.WORDS}),
        ("--data /scratch/a --lr 1", "--data /mnt/b --lr 1", set()),
        ("/a/b", "/a/c", set()),
        ("--node-rank 0 --local-rank=0 --num_workers 2", "--node-rank 1 --local-rank=1 --num_workers 4", set()),
        ("--init tcp://a:1 --host-ip a", "--init tcp://b:1 --host-ip b", set()),
    ],
)
def test_options_are_compared_by_name(one: str, other: str, differ: set[str]) -> None:
    """Paths, and what speaks of a machine, may be each rank's own."""
    here, there = (program.arguments(["train.py", *words.split()]) for words in (one, other))
    assert {name for name, _ in set(here.items()) ^ set(there.items())} == differ


def test_no_value_is_told() -> None:
    """It may be a secret."""
    assert "hunter2" not in str(program.arguments(["train.py", "--key", "hunter2", "hunter2", "--a=hunter2"]))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/b/train.py", "train.py"),
        ("train.py", "train.py"),
        ("/a/mine/__main__.py", "mine/__main__.py"),
        ("-c", "-c"),
    ],
)
def test_a_program_is_called_by_its_file(path: str, name: str) -> None:
    """And not by its folder, which each machine may have elsewhere; a package by its name."""
    assert program.name_of([path, "x"]) == name
    assert program.name_of([]) == ""
