"""A command is edited so that the trainer saves, and goes on exactly where it was, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.launch.command import Refusal, StartPoint, interpreted, paced, relocated, resumed, supervised, without
from fluxguard.launch.flags import Flags
from fluxguard.launch.trainer import Trainer

SCRIPT = "sd/flux_train_network.py"
EPOCH_END = StartPoint(state=Path("/s"), true_step=30, epoch=3, at_epoch_end=True)
MID_EPOCH = StartPoint(state=Path("/s"), true_step=34, epoch=4, at_epoch_end=False)
FIRST_EPOCH = StartPoint(state=Path("/s"), true_step=4, epoch=1, at_epoch_end=False)


def trainer(args: str = "", head: str = "accelerate launch") -> Trainer:
    words = head.split()
    argv = (*words, SCRIPT, *args.split())
    return Trainer(
        argv=argv,
        index=len(words),
        script=Path("/h") / SCRIPT,
        cwd=Path("/h"),
        launcher=words[0] if words else "script",
    )


def flags(of: Trainer, **config: object) -> Flags:
    return Flags(of.args, of.cwd, config, "c.toml")


@pytest.mark.parametrize(
    ("args", "added"),
    [
        ("", "--save_state --save_every_n_epochs 1"),
        ("--save_every_n_epochs 4", "--save_state"),
        ("--save_every_n_steps=50", "--save_state"),
        ("--save_n_epoch_ratio 2", "--save_state"),
        ("--save_state", "--save_every_n_epochs 1"),
        ("--save_state --save_every_n_steps 5", ""),
        ("--save_state_on_train_end --save_every_n_steps 5", "--save_state"),
    ],
)
def test_a_run_saves_states_that_it_can_resume_from(args: str, added: str) -> None:
    of = trainer(args)
    argv, flags_added = supervised(of, flags(of))
    assert flags_added == tuple(added.split())
    assert argv == (*of.argv, *flags_added)


def test_what_the_file_says_is_not_said_again() -> None:
    assert supervised(trainer(), flags(trainer(), save_state=True, save_every_n_epochs=2))[1] == ()


def test_a_trainer_that_saves_by_itself_is_left_as_it_is() -> None:
    """It needs no flags, and writes no weights that nobody asked for."""
    assert supervised(trainer(), flags(trainer()), timed=True) == (trainer().argv, ())


@pytest.mark.parametrize(
    ("args", "step_seconds", "every", "spe", "steps"),
    [
        ("", 3.0, 600.0, 1000, 200),
        ("", 3.0, 600.0, 200, None),  # each epoch has its state
        ("", 0.0, 600.0, 1000, None),  # nobody knows
        ("", 3.0, None, 1000, None),
        ("", 3.0, 600.0, 0, None),
        ("", 2000.0, 600.0, 1000, 1),
        ("--gradient_accumulation_steps 2", 3.0, 600.0, 1000, None),
        ("--save_every_n_steps 500", 3.0, 600.0, 1000, None),
        ("--save_last_n_steps 500", 3.0, 600.0, 1000, None),
    ],
)
def test_one_that_does_not_is_told_steps_once_their_length_is_known(
    args: str, step_seconds: float, every: float | None, spe: int, steps: int | None
) -> None:
    """Where it goes on rightly from within an epoch, and nobody has said otherwise."""
    of = trainer(args)
    found = paced(of.argv, flags(of), step_seconds=step_seconds, every=every, steps_per_epoch=spe)
    more = f"--save_every_n_steps {steps} --save_last_n_steps {steps} --save_last_n_steps_state {steps}".split()
    assert found == (*of.argv, *(more if steps else ()))


def going_on(args: str, start: StartPoint, head: str = "accelerate launch", spe: int | None = 10) -> str | Refusal:
    of = trainer(args, head)
    found = resumed(of.argv, of, flags(of), start, hardened=False, steps_per_epoch=spe)
    return found if isinstance(found, Refusal) else " ".join(found[of.index + 1 :])


@pytest.mark.parametrize(
    ("args", "start", "flow"),
    [
        ("--max_train_epochs 5", EPOCH_END, "--resume /s --initial_epoch 4"),
        ("--max_train_epochs 5 --gradient_accumulation_steps 2", EPOCH_END, "--resume /s --initial_epoch 4"),
        ("--max_train_epochs 5", MID_EPOCH, "--resume /s --skip_until_initial_step --initial_step 34"),
        ("--max_train_steps 50", EPOCH_END, "--resume /s --initial_epoch 4"),
        ("--max_train_steps 50", MID_EPOCH, "--resume /s --skip_until_initial_step --initial_step 34"),
        ("--max_train_steps 47", FIRST_EPOCH, "--resume /s --skip_until_initial_step --initial_step 4"),
        ("", EPOCH_END, "--resume /s --initial_epoch 4"),  # 1600 steps are 160 epochs of 10
    ],
)
def test_an_unhardened_trainer_is_told_where_to_go_on(args: str, start: StartPoint, flow: str) -> None:
    assert going_on(args, start) == f"{args} {flow}".strip()


@pytest.mark.parametrize(
    ("head", "flow"),
    [
        ("accelerate launch --num_processes 1", "--initial_epoch 4"),
        ("accelerate launch --num_processes 2", "--initial_step 30"),  # upstream divides by the processes twice
        ("accelerate launch --multi_gpu", "--initial_step 30"),
    ],
)
def test_several_processes_are_told_the_step_of_the_epoch(head: str, flow: str) -> None:
    assert going_on("--max_train_epochs 5", EPOCH_END, head) == f"--max_train_epochs 5 --resume /s {flow}"


@pytest.mark.parametrize(
    ("args", "start", "head", "spe", "because"),
    [
        ("--max_train_epochs 5 --gradient_accumulation_steps 2", MID_EPOCH, "accelerate launch", 10, "accumulation"),
        ("--max_train_epochs 5", EPOCH_END, "accelerate launch --num_processes 2", None, "several processes"),
        ("--max_train_steps 47", MID_EPOCH, "accelerate launch", 10, "47 steps are no whole number of epochs of 10"),
        ("--max_train_steps 47", EPOCH_END, "accelerate launch", 10, "too many"),
        ("--max_train_steps 50", EPOCH_END, "accelerate launch", None, "not known"),
        ("--max_train_epochs 3", EPOCH_END, "accelerate launch", 10, "nothing left"),
        ("--max_train_steps 30", EPOCH_END, "accelerate launch", 10, "nothing left"),
    ],
)
def test_what_an_unhardened_trainer_would_miscount_is_refused(
    args: str, start: StartPoint, head: str, spe: int | None, because: str
) -> None:
    found = going_on(args, start, head, spe)
    assert isinstance(found, Refusal)
    assert because in found.reason


@pytest.mark.parametrize("start", [EPOCH_END, MID_EPOCH])
def test_a_hardened_trainer_is_told_the_state_and_no_more(start: StartPoint) -> None:
    of = trainer("--gradient_accumulation_steps 2 --max_train_steps 47")
    added = (*of.argv, "--save_state")
    assert resumed(added, of, flags(of), start, hardened=True) == (*added, "--resume", "/s")


@pytest.mark.parametrize("hardened", [False, True])
def test_the_users_own_ways_to_resume_are_taken_out(hardened: bool) -> None:
    of = trainer("--a --resume x --initial_step=3 --b 1 --skip_until_initial_step --initial_ep 2 --max_train_epochs 9")
    found = resumed(of.argv, of, flags(of), EPOCH_END, hardened=hardened)
    flow = "" if hardened else " --initial_epoch 4"
    assert not isinstance(found, Refusal)
    assert " ".join(found[of.index + 1 :]) == f"--a --b 1 --max_train_epochs 9 --resume /s{flow}"


def test_a_way_to_resume_in_the_file_cannot_be_taken_out() -> None:
    of = trainer("--max_train_epochs 9 --config_file c")
    found = resumed(of.argv, of, flags(of, skip_until_initial_step=True), EPOCH_END, hardened=True)
    assert isinstance(found, Refusal)
    assert "skip_until_initial_step is set in /h/c.toml" in found.reason


def test_a_flag_goes_with_its_values() -> None:
    assert without(("--ab", "1", "2", "--sdpa", "--resume=3"), ("ab", "resume")) == ("--sdpa",)


@pytest.mark.parametrize(
    ("head", "becomes"),
    [
        ("accelerate launch --x 1", "/v/python -m accelerate.commands.launch --x 1"),
        ("accelerate-launch --x", "/v/python -m accelerate.commands.launch --x"),
        ("python -u", "/v/python -u"),
        ("python3.11", "/v/python"),
        ("py -3.10 -u", "/v/python -u"),
        ("torchrun --nnodes 1", "/v/python -m torch.distributed.run --nnodes 1"),
        ("", "/v/python"),
        ("env/bin/accelerate launch", "/h/env/bin/accelerate launch"),
        ("/w/bin/python -m accelerate.commands.launch", "/w/bin/python -m accelerate.commands.launch"),
        ("deepspeed --x", "deepspeed --x"),
    ],
)
def test_a_bare_program_becomes_the_chosen_interpreter_and_a_path_stays(head: str, becomes: str) -> None:
    of = trainer("--a b", head)
    assert interpreted(of.argv, of, Path("/v/python")) == (*becomes.split(), SCRIPT, "--a", "b")


def test_a_hardened_copy_is_run_in_place_of_the_checkout() -> None:
    of = trainer("--a")
    assert relocated(of.argv, of, Path("/copy")) == ("accelerate", "launch", "/copy/flux_train_network.py", "--a")


@pytest.mark.parametrize(
    ("accumulation", "hardened", "added"),
    [(1, False, ()), (2, True, ()), (2, False, ("--save_every_n_epochs", "1"))],
)
def test_states_come_where_the_trainer_can_resume(accumulation: int, hardened: bool, added: tuple[str, ...]) -> None:
    """With accumulation an unhardened one goes on from the end of an epoch only, so it must save there."""
    of = trainer(f"--save_state --save_every_n_steps 5 --gradient_accumulation_steps {accumulation}")
    assert supervised(of, flags(of), hardened=hardened)[1] == added
