"""Laws of reading a command for its ranks: what launcher, how many machines, who starts them again."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from fluxguard.launch import ranks
from fluxguard.launch.ranks import ACCELERATE, FLAGS, TORCHRUN, Ranks, read, split_endpoint


def known(command: str, **env: str) -> Ranks:
    """Return what is read from a command that has a launcher."""
    found = read(command.split(), env)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --nnodes=2",
        "python train.py torchrun",
        "deepspeed train.py",
        "accelerate config",
        "accelerate",
        "",
    ],
)
def test_a_command_without_a_launcher_says_nothing_of_ranks(command: str) -> None:
    """What the program itself is given does not count."""
    assert read(command.split()) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun train.py", (1, 1, 1, 0)),
        ("torchrun --standalone --nproc-per-node=2 --max-restarts=3 train.py", (1, 1, 2, 3)),
        ("torchrun --nproc_per_node gpu train.py --max-restarts 9", (1, 1, None, 0)),
        ("torchrun --nproc_per_node xpu train.py", (1, 1, None, 0)),
        ("torchrun --nnodes=1:2 --nproc-per-node 4 --max-restarts 5 -m package.train", (1, 2, 4, 5)),
        ("torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint gpu1:29500 train.py", (3, 3, 1, 0)),
        ("/v/bin/python -m torch.distributed.run --nnodes=2 train.py", (2, 2, 1, 0)),
        ("uv run torchrun --nnodes=2:4 train.py", (2, 4, 1, 0)),
        ("env A=1 torchrun --nnodes=2 train.py", (2, 2, 1, 0)),
        ("torchrun --nnodes=wrong --max-restarts=many train.py", (1, 1, 1, 0)),
        ("accelerate launch train.py", (1, 1, None, 0)),
        ("accelerate launch --num_processes 2 --cpu --max_restarts=1 train.py", (1, 1, 2, 1)),
        ("accelerate launch --num-machines 2 --num-processes=8 --multi-gpu train.py", (2, 2, 4, 0)),
        ("python -m accelerate.commands.launch --num_machines=2 --num_processes=5 train.py", (2, 2, None, 0)),
        ("accelerate-launch --num_machines 2 train.py", (2, 2, None, 0)),
    ],
)
def test_machines_ranks_and_restarts_are_read(command: str, expected: tuple[int, int, int | None, int]) -> None:
    """However the options are spelt; what is wrong with them is for the launcher to say."""
    found = known(command)
    assert (found.least, found.most, found.per_node, found.max_restarts) == expected
    assert found.several == (found.most > 1)


def test_options_of_torchrun_in_the_environment_count_unless_the_command_says_otherwise() -> None:
    """As torch reads them."""
    found = known("torchrun --nnodes=2 train.py", PET_NNODES="9", PET_MAX_RESTARTS="4", PET_RDZV_BACKEND="c10d")
    assert (found.most, found.max_restarts, found.elastic) == (2, 4, True)
    assert known("accelerate launch train.py", PET_NNODES="9").most == 1
    apart = known(
        "torchrun --rdzv-endpoint=gpu1:29500 --nnodes=2 train.py", PET_STANDALONE="0", PET_RDZV_BACKEND="c10d"
    )
    assert apart.endpoint == "gpu1:29500"
    assert known("torchrun --nnodes=2 train.py", PET_STANDALONE="1").backend == "c10d"


@pytest.mark.parametrize(
    ("command", "endpoint"),
    [
        ("torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=gpu1:29500 t.py", "gpu1:29500"),
        ("torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=gpu1 t.py", "gpu1:29400"),
        ("torchrun --nnodes=2 --master-addr gpu1 --master-port 1234 --node-rank 1 t.py", "gpu1:1234"),
        ("torchrun --nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 t.py", ""),
        ("torchrun --standalone --rdzv-endpoint=gpu1:29500 t.py", ""),
        ("accelerate launch --num_machines 2 --main_process_ip gpu1 --main_process_port 29501 t.py", "gpu1:29501"),
    ],
)
def test_the_door_of_the_rendezvous_is_known_where_there_are_several_machines(command: str, endpoint: str) -> None:
    """HOST:PORT."""
    assert known(command).endpoint == endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1:29400", ("gpu1", 29400)),
        ("gpu1", ("gpu1", None)),
        ("[::1]:80", ("::1", 80)),
        ("fe80::1", ("fe80::1", None)),
        ("", ("", None)),
        ("gpu1:port", ("gpu1", None)),
    ],
)
def test_host_and_port_are_told_apart(text: str, expected: tuple[str, int | None]) -> None:
    """Addresses of version 6 hold colons of their own."""
    assert split_endpoint(text) == expected


@pytest.mark.parametrize(
    ("command", "elastic"),
    [
        ("torchrun --nproc-per-node=2 t.py", False),
        ("torchrun --nproc-per-node=2 --max-restarts=1 t.py", True),
        ("torchrun --nnodes=2 --max-restarts=1 t.py", False),
        ("torchrun --nnodes=2 --max-restarts=1 --rdzv-backend=c10d t.py", True),
        ("accelerate launch --num_machines=2 --max_restarts=1 t.py", False),
        ("accelerate launch --num_machines=2 --max_restarts=1 --rdzv_backend=c10d t.py", True),
    ],
)
def test_an_agent_starts_a_round_only_with_restarts_left_and_others_that_hear_of_it(
    command: str, elastic: bool
) -> None:
    """The static rendezvous of several machines tells nobody that one of them starts again."""
    found = known(command)
    assert found.elastic is elastic
    assert ranks.environment(found) == ({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if elastic else {})
    assert ranks.environment(None) == {}


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun --standalone --nproc-per-node 2 train.py --lr 1", "train.py --lr 1"),
        ("torchrun -m --nnodes=2 package.train x", "package.train x"),
        ("torchrun --nnodes=2 -- train.py", "train.py"),
        ("accelerate launch --multi_gpu --num_processes 2 train.py", "train.py"),
        ("torchrun --nnodes=2", ""),
    ],
)
def test_the_program_begins_behind_the_options_of_the_launcher(command: str, program: str) -> None:
    """Some of which have no value."""
    words = command.split()
    assert " ".join(words[known(command).program :]) == program


def _torchrun() -> Any:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def _accelerate() -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


@pytest.mark.parametrize(("launcher", "parser"), [(TORCHRUN, _torchrun), (ACCELERATE, _accelerate)])
def test_the_options_without_a_value_are_those_of_the_launcher(launcher: str, parser: Callable[[], Any]) -> None:
    """Of the versions that are installed: one that is not known would swallow the program."""
    actions = [action for action in parser()._actions if isinstance(action, argparse.Action)]
    bare = {name for action in actions if action.nargs == 0 for name in action.option_strings}
    valued = {name for action in actions if action.nargs is None for name in action.option_strings}
    assert {name.lstrip("-").replace("-", "_") for name in bare} <= FLAGS[launcher]
    assert not {name.lstrip("-").replace("-", "_") for name in valued} & FLAGS[launcher]
