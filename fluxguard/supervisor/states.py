"""States: which are whole, which step each really holds, which one a run resumes from. Nothing is ever unpickled."""

from __future__ import annotations

import json
import logging
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir

_log = logging.getLogger(__name__)

_FILES = ("train_state.json", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
"""What accelerate leaves in a state of a LoRA training, in the order it is written; fewer means it was cut short."""
_BROKEN = "broken"


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


def seal(run: RunDir, plan: Plan, *, since: float) -> list[str]:
    """Move every whole state of the output folder into the run directory, named by its true step.

    Only while no trainer lives: upstream writes states in place under names that collide, and removes old ones. A state
    that is not whole is set aside; one from before `since` (seconds since the epoch) belongs to another training and is
    left where it is. Return what was set aside, with the reason, in words.
    """
    aside = []
    # Between the two renames of a save that replaces a state, the old one lies whole under a hidden name.
    for folder in sorted([*run.output_dir.glob("*-state"), *run.output_dir.glob(".*-state.old")]):
        if not folder.is_dir() or folder.is_symlink() or _written_at(folder) < since:
            continue
        if not plan.steps_per_epoch and not (folder / manifest.NAME).exists():
            continue  # its true step cannot be known yet; it may become known
        try:
            sealed = _sealed(folder, plan)
        except StateUnusable as unusable:
            aside.append(str(unusable))
            _set_aside(run, folder)
            continue
        target = run.states / f"step-{sealed.true_step:08d}"
        if target.exists():
            # One of the two must go; both embody the same steps, and the older one has verified before.
            shutil.rmtree(folder)
        else:
            folder.rename(target)
    for partial in run.output_dir.glob(".*-state.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    return aside


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


def prune(run: RunDir, keep: int) -> None:
    """Delete all but the newest `keep` sealed states; only for runs whose states fluxguard asked for."""
    for folder in sorted(run.states.glob("step-*[0-9]"), reverse=True)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)


def newest_step(run: RunDir) -> int:
    """Return the most true steps that a sealed state names; 0 without one."""
    numbers = (folder.name.removeprefix("step-") for folder in run.states.glob("step-*[0-9]"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _written_at(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)


def _sealed(folder: Path, plan: Plan) -> manifest.Manifest:
    """Return the manifest of a whole state, writing one for a state of an unhardened trainer."""
    if (folder / manifest.NAME).exists():
        return manifest.verify(folder)
    _whole(folder)
    epoch, step = _train_state(folder)
    true = true_step(epoch, step, plan.steps_per_epoch)
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
    except (OSError, ValueError, KeyError, TypeError):
        raise StateUnusable(folder, "train_state.json cannot be read") from None
    if epoch < 1:
        raise StateUnusable(folder, f"train_state.json names epoch {epoch}")
    return epoch, step


def _set_aside(run: RunDir, folder: Path) -> None:
    """Keep a state that does not verify out of every search, without losing it."""
    place = run.root / _BROKEN
    place.mkdir(exist_ok=True)
    taken: Iterable[str] = {path.name for path in place.iterdir()}
    name = next(n for n in (f"{folder.name}.{i}" for i in range(len(list(taken)) + 1)) if n not in set(taken))
    folder.rename(place / name)


def with_plan(plan: Plan, *, planned_steps: int, batches_per_epoch: int) -> Plan:
    """Return the plan with what the trainer has shown meanwhile; what is known already stays."""
    return replace(
        plan,
        planned_steps=plan.planned_steps or planned_steps,
        batches_per_epoch=plan.batches_per_epoch or batches_per_epoch,
    )
