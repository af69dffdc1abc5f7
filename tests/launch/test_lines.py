"""Laws of the command of each machine: what was asked for is what a launcher reads from it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from fluxguard.errors import InputError
from fluxguard.launch import lines, ranks
from fluxguard.launch.lines import Machines
from fluxguard.launch.ranks import ACCELERATE, TORCHRUN

TWO = Machines(hosts=("gpu1", "gpu2"), per_node=4)


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE])
def test_a_line_says_to_the_launcher_what_was_asked_for(launcher: str) -> None:
    """Machines, ranks, restarts, and where they meet."""
    machines = Machines(hosts=("gpu1", "gpu2"), per_node=4, restarts=7, launcher=launcher)
    made = lines.lines(["python", "train.py", "--lr", "1"], machines)
    assert [line.host for line in made] == ["gpu1", "gpu2"]
    for line in made:
        found = ranks.read(line.argv)
        assert found is not None
        assert (found.launcher, found.least, found.most, found.per_node) == (launcher, 2, 2, 4)
        assert (found.max_restarts, found.elastic, found.endpoint) == (7, True, f"gpu1:{lines.PORT}")
        assert line.argv[found.program :] == ("train.py", "--lr", "1")


def test_fewer_machines_may_go_on_when_that_is_asked_for() -> None:
    """By torchrun; accelerate counts its machines at the start."""
    [first, _] = lines.lines(["train.py"], Machines(hosts=("a", "b"), least=1))
    assert "--nnodes=1:2" in first.argv
    with pytest.raises(InputError, match="--least"):
        Machines(hosts=("a", "b"), least=1, launcher=ACCELERATE)


@pytest.mark.parametrize("machines", [{"hosts": ()}, {"hosts": ("a", "a")}, {"hosts": ("a",), "least": 2}])
def test_machines_that_cannot_be_are_refused(machines: dict[str, Any]) -> None:
    """With the name of the option."""
    with pytest.raises(InputError, match=r"--on|--least"):
        Machines(**machines)


@pytest.mark.parametrize(
    ("endpoint", "holds"),
    [("", ["1", "0"]), ("gpu2:5", ["0", "1"]), ("10.0.0.1:5", [])],
)
def test_one_machine_holds_the_rendezvous(endpoint: str, holds: list[str]) -> None:
    """Which is said where names can say it."""
    made = lines.lines(["train.py"], Machines(hosts=("gpu1", "gpu2"), endpoint=endpoint))
    said = [word.partition("is_host=")[2] for line in made for word in line.argv if "is_host" in word]
    assert said == holds


@pytest.mark.parametrize(
    ("command", "program", "module"),
    [
        ("python train.py x", "train.py x", False),
        ("python -u train.py x", "train.py x", False),
        ("python -m package.train x", "package.train x", True),
        ("torchrun --nproc-per-node=2 train.py x", "train.py x", False),
        ("torchrun -m --nproc-per-node=2 package.train x", "package.train x", True),
        ("accelerate launch --num_processes 2 --module package.train", "package.train", True),
        ("train.py", "train.py", False),
    ],
)
def test_a_launcher_in_the_command_is_replaced(command: str, program: str, module: bool) -> None:
    """What it runs stays."""
    assert lines.program_of(command.split()) == (tuple(program.split()), module)
    [line, _] = lines.lines(command.split(), TWO)
    assert line.argv[-len(program.split()) :] == tuple(program.split())
    assert ("-m" in line.argv) is module


@pytest.mark.parametrize(
    ("command", "launcher", "begins", "holds"),
    [
        ("env A=b torchrun train.py", TORCHRUN, "env A=b torchrun", ""),
        ("uv run torchrun --nproc-per-node 8 train.py", TORCHRUN, "uv run torchrun", "--nproc-per-node=8"),
        ("/v/bin/python -m torch.distributed.run train.py", TORCHRUN, "/v/bin/python -m torch.distributed.run", ""),
        ("/v/bin/python -X dev train.py", TORCHRUN, "/v/bin/torchrun", ""),
        ("A=b /v/bin/torchrun train.py", ACCELERATE, "A=b /v/bin/accelerate launch", ""),
        ("torchrun --log-dir /l -r 3 --run-path train.py", TORCHRUN, "torchrun", "--log_dir=/l -r 3 --run_path"),
        ("torchrun --rdzv-conf is_host=0,join_timeout=9 train.py", TORCHRUN, "torchrun", "is_host=1,join_timeout=9"),
        ("accelerate launch --dynamo_mode a --use_fsdp train.py", ACCELERATE, "accelerate", "_mode=a --use_fsdp"),
        ("accelerate launch --num_processes 4 train.py", ACCELERATE, "accelerate launch", "--num_processes=8"),
        ("accelerate launch --mixed_precision bf16 train.py", TORCHRUN, "torchrun", ""),
    ],
)  # fmt: skip
def test_what_a_command_says_of_other_things_stays(command: str, launcher: str, begins: str, holds: str) -> None:
    """What stands before the launcher, its place, and its options: without one of them another training would run."""
    [line, _] = lines.lines(command.split(), Machines(hosts=("a", "b"), launcher=launcher))
    assert " ".join(line.argv).startswith(begins)
    assert holds in " ".join(line.argv)
    assert line.argv[-1] == "train.py"


@pytest.mark.parametrize("command", ["bash run.sh python", "./train --lang python"])
def test_a_program_that_is_not_of_python_is_started_as_it_is(command: str) -> None:
    """A launcher would have Python run it otherwise."""
    [line, _] = lines.lines(command.split(), TWO)
    program = command.split()
    assert line.argv[-len(program) - 1 :] == ("--no_python", *program)


def test_a_command_without_a_program_is_refused() -> None:
    """Before anything is written."""
    with pytest.raises(InputError, match="COMMAND"):
        lines.lines(["torchrun", "--nnodes=2"], TWO)


def test_the_line_for_the_shell_holds_all_that_the_supervisor_does_not_set_itself() -> None:
    """Quoted, behind the environment of that machine."""
    machines = Machines(hosts=("a", "b"), interface="eth 0")
    [line, _] = lines.lines(["train.py", "two words"], machines)
    assert line.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    words = shlex.split(line.supervised("/shared/my run"))
    assert words[:2] == ["NCCL_SOCKET_IFNAME=eth 0", "GLOO_SOCKET_IFNAME=eth 0"]
    assert words[2:9] == ["fluxguard", "supervise", "--node", "a", "--output-dir", "/shared/my run", "--"]
    assert words[-1] == "two words"
    assert not any(word.startswith("TORCH_") for word in words)


def test_two_trainings_at_one_rendezvous_do_not_meet() -> None:
    """Their names there differ, by what they train or where they save; all machines of one have the same."""

    def named(output_dir: str, *command: str, launcher: str = TORCHRUN) -> str:
        machines = Machines(hosts=("a", "b"), output_dir=output_dir, launcher=launcher)
        made = lines.lines(command, machines)
        told = [ranks.read(line.argv) for line in made]
        found = {str(one.options.get("rdzv_id")) for one in told if one}
        found = {line.env["PET_RDZV_ID"] for line in made} if launcher == ACCELERATE else found
        assert len(found) == 1
        return found.pop()

    assert named("/shared/my run", "train.py").startswith("my-run-")
    assert (
        named("out", "train.py") == named("out", "python", "train.py") == named("out", "train.py", launcher=ACCELERATE)
    )
    assert len({named("out", "train.py"), named("other/out", "train.py"), named("out", "train.py", "--lr=1")}) == 3
    assert named("out", "torchrun", "--rdzv-id=mine", "train.py") == "mine"


@pytest.mark.parametrize("endpoint", ["h:xx", "h:", "h:0", "h:70000", "[::1]:x"])
def test_a_port_that_is_none_is_said(endpoint: str) -> None:
    """And not replaced in silence."""
    with pytest.raises(InputError, match="--endpoint"):
        Machines(hosts=("a",), endpoint=endpoint)
