"""States: which are whole, which step each really holds, which one a run resumes from. Nothing is ever unpickled."""

from __future__ import annotations

import json
import logging
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir

_log = logging.getLogger(__name__)

_FILES = ("train_state.json", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
"""What accelerate leaves in a state of a LoRA training, in the order it is written; fewer means it was cut short."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arithmetic of a run, as its trainer showed it."""

    planned_steps: int = 0
    """Optimizer steps of the whole run; 0 while unknown."""
    batches_per_epoch: int = 0
    """Batches one process trains in an epoch; 0 while unknown."""
    accumulation: int = 1
    """Batches per optimizer step."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch; 0 while unknown."""
        return -(-self.batches_per_epoch // self.accumulation)


@dataclass(frozen=True, kw_only=True)
class State:
    """A verified state."""

    path: Path
    manifest: manifest.Manifest

    @property
    def true_step(self) -> int:
        """Optimizer steps embodied in it."""
        return self.manifest.true_step

    @property
    def at_epoch_end(self) -> bool:
        """Whether it holds a whole number of epochs."""
        return 0 < self.manifest.batches_per_epoch <= self.manifest.batch


def true_step(current_epoch: int, current_step: int, steps_per_epoch: int) -> int:
    """Return the true step of an unhardened state.

    Upstream's step counts one process only, its epoch is right; and its step is congruent to the step within the epoch,
    whichever way the process was resumed (measured over five crashes in a row).
    """
    return (current_epoch - 1) * steps_per_epoch + (current_step - 1) % steps_per_epoch + 1


@dataclass(frozen=True)
class Sealed:
    """What sealing did."""

    steps: tuple[int, ...] = ()
    """The true steps of the states that were sealed."""
    aside: tuple[str, ...] = ()
    """What was set aside, with the reason, in words."""
    unread: tuple[str, ...] = ()
    """What could be neither sealed nor judged now, for want of room or of an answer of the disk."""


def seal(run: RunDir, plan: Plan, *, since: float) -> Sealed:
    """Move every whole state of the output folder into the run directory, named by its true step.

    Only while no trainer lives: upstream writes states in place under names that collide, and removes old ones. A state
    that is not whole is set aside; one from before `since` (seconds since the epoch) belongs to another training and is
    left where it is.
    """
    steps, aside, unread = [], [], []
    for folder in _candidates(run):
        try:
            if _written_at(folder) < since:
                continue
            if not plan.steps_per_epoch and not (folder / manifest.NAME).exists():
                continue  # its true step cannot be known yet; it may become known
            sealed = _sealed(folder, plan)
            _move_in(run, folder, sealed.true_step)
            steps.append(sealed.true_step)
        except StateUnusable as unusable:
            aside.append(str(unusable))
            _set_aside(run, folder)
        except OSError as error:  # a share that does not answer, a folder that went away: the next state is tried
            unread.append(f"{folder}: {error}")
    return Sealed(tuple(steps), tuple(aside), tuple(unread))


def _candidates(run: RunDir) -> list[Path]:
    """Return what may be a whole state, and clear away what a hardened trainer left half written.

    A kill between the writing of a manifest and the rename, or between the two renames of a save that replaces a state,
    leaves a whole one under a hidden name.
    """
    for folder in run.output_dir.glob(".*-state.removed"):  # by a newer one
        shutil.rmtree(folder, ignore_errors=True)
    hidden = [*run.output_dir.glob(".*-state.old"), *run.output_dir.glob(".*-state.partial")]
    whole = [folder for folder in hidden if (folder / manifest.NAME).exists()]
    for folder in hidden:
        if folder not in whole:
            shutil.rmtree(folder, ignore_errors=True)
    numbered = run.output_dir.glob("*-state_[0-9]*")  # one fork's answer to a name that is taken
    found = sorted([*run.output_dir.glob("*-state"), *numbered, *whole])
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


def _move_in(run: RunDir, folder: Path, step: int) -> None:
    target = run.states / f"step-{step:08d}"
    if target.exists():
        try:
            manifest.verify(target)
        except StateUnusable:
            _set_aside(run, target)
        else:
            _set_aside(run, folder)  # both embody the same steps
            return
    folder.rename(target)


def verified(run: RunDir, plan: Plan, aside: list[str]) -> Iterator[State]:
    """Yield the sealed states that verify, most true steps first; what does not is set aside and told to `aside`.

    One that already holds every planned step is passed over: upstream refuses to start from it, so the last part is
    trained again from the state before.
    """
    for folder in sorted(run.states.glob("step-*[0-9]"), reverse=True):
        try:
            found = State(path=folder, manifest=manifest.verify(folder))
        except StateUnusable as unusable:
            aside.append(str(unusable))
            _set_aside(run, folder)
            continue
        if not plan.planned_steps or found.true_step < plan.planned_steps:
            yield found


def prune(run: RunDir, resumed: State) -> None:
    """Delete what is older than the state a run goes on from, but for one; only where fluxguard asked for the states.

    Newer ones stay, also those that this trainer cannot resume from: a hardened one could.
    """
    older = sorted(path for path in run.states.glob("step-*[0-9]") if path.name < resumed.path.name)
    for folder in older[:-1]:
        shutil.rmtree(folder, ignore_errors=True)


def _written_at(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)


def _sealed(folder: Path, plan: Plan) -> manifest.Manifest:
    """Return the manifest of a whole state, writing one for a state of an unhardened trainer."""
    if (folder / manifest.NAME).exists():
        return manifest.verify(folder)
    try:
        _whole(folder)
    except (RuntimeError, ValueError, zlib.error, struct.error) as error:  # what zipfile makes of flipped bits
        raise StateUnusable(folder, f"is broken ({error})") from None
    epoch, step = _train_state(folder)
    true = true_step(epoch, step, plan.steps_per_epoch)
    if plan.planned_steps and true > plan.planned_steps:
        raise StateUnusable(folder, f"train_state.json names step {true} of {plan.planned_steps}")
    in_epoch = true - (epoch - 1) * plan.steps_per_epoch
    made = manifest.Manifest(
        true_step=true,
        epoch=epoch,
        batch=min(in_epoch * plan.accumulation, plan.batches_per_epoch),
        world_size=len(list(folder.glob("random_states_*.pkl"))),
        batches_per_epoch=plan.batches_per_epoch,
        files=manifest.of_files(folder),
    )
    manifest.write(folder, made)
    return made


def _whole(folder: Path) -> None:
    """Raise StateUnusable unless all files of a state are there and whole."""
    for name in _FILES:
        path = folder / name
        if not path.is_file():
            raise StateUnusable(folder, f"{name} is missing: the state was cut short")
        if path.suffix == ".safetensors":
            _safetensors_whole(folder, path)
        elif path.suffix in (".bin", ".pkl"):
            _zip_whole(folder, path)


def _safetensors_whole(folder: Path, path: Path) -> None:
    try:
        with safe_open(path, framework="numpy") as file:
            file.keys()
    except (SafetensorError, OSError) as error:
        raise StateUnusable(folder, f"{path.name} is broken ({error})") from None


def _zip_whole(folder: Path, path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise StateUnusable(folder, f"{path.name} is broken ({error})") from None
    if bad is not None:
        raise StateUnusable(folder, f"{path.name} is broken (CRC of {bad})")


def _train_state(folder: Path) -> tuple[int, int]:
    try:
        values = json.loads((folder / "train_state.json").read_bytes())
        epoch, step = int(values["current_epoch"]), int(values["current_step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise StateUnusable(folder, "train_state.json cannot be read") from None
    if epoch < 1 or step < 1:
        raise StateUnusable(folder, f"train_state.json names epoch {epoch}, step {step}")
    return epoch, step


def _set_aside(run: RunDir, folder: Path) -> None:
    """Keep a state out of every search, without losing it; one that cannot even be moved is left."""
    try:
        run.aside.mkdir(exist_ok=True)
        taken = {path.name for path in run.aside.iterdir()}
        name = next(n for n in (f"{folder.name}.{i}" for i in range(len(taken) + 1)) if n not in taken)
        folder.rename(run.aside / name)
    except OSError as error:
        _log.warning("%s cannot be set aside: %s", folder, error)


def with_plan(plan: Plan, *, planned_steps: int, batches_per_epoch: int) -> Plan:
    """Return the plan with what the trainer has shown meanwhile; what is known already stays."""
    return replace(
        plan,
        planned_steps=plan.planned_steps or planned_steps,
        batches_per_epoch=plan.batches_per_epoch or batches_per_epoch,
    )
