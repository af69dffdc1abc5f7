"""Editing a trainer's command: flags go after the user's own, where argparse lets the later one win."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.launch.flags import Flags, spans
from fluxguard.launch.trainer import Trainer, base, is_python

_RESUME_FLAGS = ("resume", "resume_from_huggingface", "initial_step", "initial_epoch", "skip_until_initial_step")
_STEP_FLAGS = ("save_every_n_steps", "save_last_n_steps", "save_last_n_steps_state")
_VERSION_OF_PY = re.compile(r"-\d+(\.\d+)?(-\d+)?")


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """A state to go on from."""

    state: Path
    true_step: int
    """Optimizer steps it embodies, counted over all attempts."""
    epoch: int
    """The epoch, from 1, in which it was saved."""
    at_epoch_end: bool
    """Whether that epoch was complete."""


@dataclass(frozen=True)
class Refusal:
    """Why a state cannot be resumed from without training too much or too little, in plain words."""

    reason: str


def supervised(
    trainer: Trainer, flags: Flags, *, hardened: bool = True, timed: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command that saves what a resume needs, and the flags that were added for it.

    A `timed` trainer saves states by itself, whenever it is time: it needs no flags. One that is not hardened resumes
    with gradient accumulation from the end of an epoch only.
    """
    added: list[str] = []
    if timed:
        return trainer.argv, ()
    if not flags.save_state:
        added.append("--save_state")
    at_epochs = flags.save_every_n_epochs or flags.save_n_epoch_ratio
    within = flags.save_every_n_steps and (hardened or flags.gradient_accumulation_steps == 1)
    if not (at_epochs or within):
        added += ["--save_every_n_epochs", "1"]
    return (*trainer.argv, *added), tuple(added)


def paced(
    argv: Sequence[str], flags: Flags, *, step_seconds: float, every: float | None, steps_per_epoch: int
) -> tuple[str, ...]:
    """Return the command of a trainer that is not hardened with states about `every` so many seconds within an epoch.

    Only where it goes on rightly from them, the user has no such cadence, and an earlier attempt has shown how long a
    step takes. The weights that are saved with each state are removed again but for the last two.
    """
    own = any(flags.given(name) for name in _STEP_FLAGS)
    if own or not step_seconds or every is None or flags.gradient_accumulation_steps > 1:
        return tuple(argv)
    steps = max(1, round(every / step_seconds))
    if steps >= steps_per_epoch:
        return tuple(argv)  # each epoch has its state already
    return (*argv, *(word for name in _STEP_FLAGS for word in (f"--{name}", str(steps))))


def resumed(
    argv: Sequence[str],
    trainer: Trainer,
    flags: Flags,
    start: StartPoint,
    *,
    hardened: bool,
    steps_per_epoch: int | None = None,
) -> tuple[str, ...] | Refusal:
    """Return the command that goes on from `start` and ends where the plan says, or the reason why there is none.

    `argv` is the trainer's command, with flags added after it or not; the user's own ways to resume are taken out.
    A hardened trainer knows the true step by the state's manifest; for any other one `steps_per_epoch` is needed where
    several processes train or the plan is counted in steps.
    """
    fixed = [name for name in _RESUME_FLAGS if name != "resume" and flags.configured(name)]
    if fixed:
        return Refusal(f"{fixed[0]} is set in {flags.config_file}, which no command line can take back; take it out")
    flow = ["--resume", str(start.state)]
    if not hardened:
        where = _unhardened(trainer, flags, start, steps_per_epoch)
        if isinstance(where, Refusal):
            return where
        flow += where
    head, args = argv[: trainer.index + 1], argv[trainer.index + 1 :]
    return (*head, *without(args, _RESUME_FLAGS), *flow)


def _unhardened(trainer: Trainer, flags: Flags, start: StartPoint, steps_per_epoch: int | None) -> list[str] | Refusal:
    refusal = _ends_elsewhere(flags, start, steps_per_epoch)
    if refusal:
        return refusal
    if not start.at_epoch_end:
        if flags.gradient_accumulation_steps > 1:
            return Refusal(
                "this trainer is not hardened, and with gradient accumulation it resumes rightly only from a state "
                "that was saved at the end of an epoch; this one was saved in the middle of one"
            )
        return ["--skip_until_initial_step", "--initial_step", str(start.true_step)]
    if trainer.processes == 1:
        return ["--initial_epoch", str(start.epoch + 1)]
    if steps_per_epoch is None:
        return Refusal(
            "this trainer is not hardened, and with several processes it resumes rightly only when the steps of an "
            "epoch are known; they are not"
        )
    return ["--initial_step", str(start.epoch * steps_per_epoch)]


def _ends_elsewhere(flags: Flags, start: StartPoint, steps_per_epoch: int | None) -> Refusal | None:
    """Refuse a start from which the trainer's own counting, which restarts, would miss the planned end."""
    nothing_left = Refusal("the state was saved at the end of the training: there is nothing left to train")
    if flags.max_train_epochs is not None:
        return nothing_left if start.at_epoch_end and start.epoch >= flags.max_train_epochs else None
    planned = flags.max_train_steps
    if start.true_step >= planned:
        return nothing_left
    in_first_epoch = start.epoch <= 1 and not start.at_epoch_end
    if in_first_epoch or (steps_per_epoch and planned % steps_per_epoch == 0):
        return None
    which = f"of {steps_per_epoch} steps" if steps_per_epoch else "whose length is not known"
    return Refusal(
        f"this trainer is not hardened, and after a resume it ends only with an epoch: {planned} steps are no whole "
        f"number of epochs {which}, so it would train too many; harden it (fluxguard apply-patches), or give "
        "--max_train_epochs"
    )


def without(args: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return `args` without some flags and the values that follow them."""
    drop = {at for name, start, end in spans(args) if name in names for at in range(start, end)}
    return tuple(word for at, word in enumerate(args) if at not in drop)


def relocated(argv: Sequence[str], trainer: Trainer, checkout: Path) -> tuple[str, ...]:
    """Return the command with the same trainer of another checkout, such as a hardened copy."""
    return (*argv[: trainer.index], str(checkout / trainer.script.name), *argv[trainer.index + 1 :])


def interpreted(argv: Sequence[str], trainer: Trainer, python: Path) -> tuple[str, ...]:
    """Return the command with `python` in place of a bare `python`, `accelerate` or `torchrun`.

    A program that the user named by its path stays, made absolute.
    """
    first, rest = argv[0], tuple(argv[1:])
    if trainer.index == 0:
        return (str(python), *argv)
    if "/" in first or "\\" in first:
        return (str(trainer.cwd / first), *rest)
    name = base(first)
    if name == "accelerate" and rest[:1] == ("launch",):
        return (str(python), "-m", "accelerate.commands.launch", *rest[1:])
    if name == "accelerate-launch":
        return (str(python), "-m", "accelerate.commands.launch", *rest)
    if name == "torchrun":
        return (str(python), "-m", "torch.distributed.run", *rest)
    if name == "py" and rest and _VERSION_OF_PY.fullmatch(rest[0]):
        rest = rest[1:]
    return (str(python), *rest) if is_python(first) else tuple(argv)
