"""States: which are whole, which step each really holds, which one a run resumes from. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import belonging, verdicts
from fluxguard.supervisor.checkpoints.belonging import Family, stranger

_log = logging.getLogger(__name__)

_STAMP = 32  # digits

Mark = tuple[tuple[str, int, int, int], ...]
"""Name, size, time and number of each file of a state."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arithmetic of a run, as its trainer showed it."""

    planned_steps: int = 0
    """Optimizer steps of the whole run; 0 while unknown."""
    batches_per_epoch: int = 0
    """Batches one process trains in an epoch; 0 while unknown."""
    accumulation: int = 1
    """Batches per optimizer step."""
    step_seconds: float = 0.0
    """How long a step takes, sampling and all; 0 while unknown."""
    save_every: float | None = None
    """Seconds between two states of a trainer that is told in steps when to save; None for none within an epoch."""

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
    fresh: frozenset[Mark] = frozenset()
    """Those that were read from end to end for it."""


def seal(run: RunDir, plan: Plan, *, since: float, others: Mapping[str, str] | None = None) -> Sealed:
    """Move every whole state of the output folder into the run directory, named by its true step.

    Only while no trainer lives: upstream writes states in place under names that collide, and removes old ones. A state
    that is not whole is set aside; one of the `others`, as `stamps` gave them before the run began, belongs to another
    training and is left where it is. Where nobody knows these, so is one from before `since` (seconds since the epoch).
    """
    steps, aside, unread, fresh = [], [], [], []
    for folder in _candidates(run):
        try:
            if is_of_another(folder, since, others):
                continue
            if not plan.steps_per_epoch and not verdicts.has_manifest(folder):
                continue  # its true step cannot be known yet; it may become known
            known, read = with_manifest(folder, plan)
            moved = _move_in(run, folder, known.true_step)
            steps.append(known.true_step)
            if read:
                fresh.append(mark(moved))
        except StateUnusable as unusable:
            aside.append(str(unusable))
            _set_aside(run, folder)
        except OSError as error:  # a share that does not answer, a folder that went away: the next state is tried
            unread.append(f"{folder}: {error}")
    return Sealed(tuple(steps), tuple(aside), tuple(unread), frozenset(fresh))


def _candidates(run: RunDir) -> list[Path]:
    """Return what may be a whole state, and clear away what a hardened trainer left half written.

    A kill between the writing of a manifest and the rename, or between the two renames of a save that replaces a state,
    leaves a whole one under a hidden name.
    """
    for folder in run.output_dir.glob(".*-state.removed"):  # by a newer one
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _hidden(run.output_dir):
        if not verdicts.has_manifest(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return candidates(run.output_dir)


def candidates(output_dir: Path) -> list[Path]:
    """Return what may be a whole state in an output folder; nothing is touched."""
    numbered = output_dir.glob("*-state_[0-9]*")  # one fork's answer to a name that is taken
    whole = [folder for folder in _hidden(output_dir) if verdicts.has_manifest(folder)]
    found = sorted([*output_dir.glob("*-state"), *numbered, *whole])
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


def _hidden(output_dir: Path) -> list[Path]:
    return [*output_dir.glob(".*-state.old"), *output_dir.glob(".*-state.partial")]


def _move_in(run: RunDir, folder: Path, step: int) -> Path:
    target = run.states / f"step-{step:08d}"
    if target.exists():
        try:
            verdicts.verified(target)
        except StateUnusable:
            _set_aside(run, target)
        else:
            _set_aside(run, folder)  # both embody the same steps
            return target
    folder.rename(target)
    return target


def sealed(run: RunDir) -> list[Path]:
    """Return the states in the run directory, most true steps first."""
    return sorted(run.states.glob("step-*[0-9]"), reverse=True)


def verified(
    run: RunDir,
    plan: Plan,
    aside: list[str],
    fresh: frozenset[Mark] = frozenset(),
    against: Callable[[Path], str] = lambda _: "",
) -> Iterator[State]:
    """Yield the sealed states that verify, most true steps first; what does not is set aside and told to `aside`.

    So is one that something speaks `against`, in words.

    Only those that are asked for are read, and none that is among the `fresh` ones, which were read just now. One that
    already holds every planned step is passed over: upstream refuses to start from it, so the last part is trained
    again from the state before.
    """
    folders = sealed(run)
    kin = family(run, folders)
    for folder in folders:
        if why := against(folder):
            aside.append(why)
            _set_aside(run, folder)
            continue
        try:
            found = State(path=folder, manifest=judged(folder, kin, fresh))
        except StateUnusable as unusable:
            aside.append(str(unusable))
            _set_aside(run, folder)
            continue
        if not plan.planned_steps or found.true_step < plan.planned_steps:
            yield found


def family(run: RunDir, folders: Iterable[Path]) -> Family:
    """Return what most of these states of a run have in common."""
    known: list[tuple[int, Path, manifest.Manifest | None]] = []
    for folder in folders:
        try:
            read = manifest.read(folder)
            known.append((read.true_step, folder, read))
        except StateUnusable:
            known.append((0, folder, None))
    return belonging.family(run, {folder: read for _, folder, read in sorted(known, key=lambda one: one[0])})


def judged(folder: Path, kin: Family, fresh: frozenset[Mark] = frozenset()) -> manifest.Manifest:
    """Return the manifest of a sealed state that is whole and of this family. Raises StateUnusable."""
    known = manifest.read(folder)
    named_rightly(folder, known)
    if why := stranger(known, verdicts.network_of(folder), kin):
        raise StateUnusable(folder, why)
    return known if mark(folder) in fresh else verdicts.verified(folder)


def named_rightly(folder: Path, known: manifest.Manifest) -> None:
    """Raise StateUnusable for a sealed state that lies under the name of another step than its manifest says."""
    name = folder.name.removeprefix("step-")
    if name.isdigit() and int(name) != known.true_step:
        raise StateUnusable(folder, f"its manifest names step {known.true_step}")


def mark(folder: Path) -> Mark:
    """Return what changes when a file of a state does, but not when the state moves."""
    found = [(path.name, path.lstat()) for path in folder.iterdir()]
    return tuple(sorted((name, one.st_size, one.st_mtime_ns, one.st_ino) for name, one in found))


def stamp(folder: Path) -> str:
    """Return what tells the files of a state from others, wherever the state lies; empty where it is gone."""
    try:
        files = [(name, size, time) for name, size, time, _ in mark(folder)]
    except OSError:
        return ""
    return hashlib.sha256(repr(files).encode()).hexdigest()[:_STAMP]


def stamps(output_dir: Path) -> dict[str, str]:
    """Return the stamps of the states in an output folder by name: before a run begins, they are another training's."""
    return {folder.name: stamp(folder) for folder in candidates(output_dir)}


def is_of_another(folder: Path, since: float, others: Mapping[str, str] | None) -> bool:
    """Return whether a state in the output folder is another training's: `others` know it, else its time tells.

    A clock that was set back makes a new state look old; its name and its files do not. Raises OSError.
    """
    if others is None:
        return written_at(folder) < since
    return others.get(folder.name) == stamp(folder)


def prune(run: RunDir, resumed: State, *, own_cadence: bool = True) -> None:
    """Delete what is older than the state a run goes on from, but for one; only what fluxguard asked for.

    `own_cadence` says that the user's flags asked for none: then all are fluxguard's. Newer ones stay, also those that
    this trainer cannot resume from: a hardened one could.
    """
    older = [folder for folder in sealed(run) if folder.name < resumed.path.name]
    kept = next((folder for folder in older if _seems_whole(folder)), None)
    for folder in older:
        if folder != kept and (own_cadence or _ours(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def _seems_whole(folder: Path) -> bool:
    try:
        return verdicts.quick(folder) is not None
    except (StateUnusable, OSError):
        return False


def _ours(folder: Path) -> bool:
    try:
        return manifest.read(folder).asked == manifest.OURS
    except StateUnusable:
        return False


def written_at(folder: Path) -> float:
    """Return when something in a state was written last, seconds since the epoch."""
    return max((path.lstat().st_mtime for path in folder.iterdir()), default=0.0)


def with_manifest(folder: Path, plan: Plan) -> tuple[manifest.Manifest, bool]:
    """Return the manifest of a state, and whether all of it has been read for that.

    A state of an unhardened trainer gets its manifest here, once it proves whole; one that has a manifest is read only
    when a run is to go on from it.
    """
    if _written_over(folder):
        (folder / manifest.NAME).unlink()
    known = verdicts.quick(folder)
    if known is not None:
        if plan.planned_steps and known.true_step > plan.planned_steps:
            raise StateUnusable(folder, f"its manifest names step {known.true_step} of {plan.planned_steps}")
        return known, False
    made = replace(without_manifest(folder, plan), files=verdicts.sound(folder))
    manifest.write(folder, made)
    return made, True


def _written_over(folder: Path) -> bool:
    """Whether a trainer that knows no manifests has written a state anew in place of one that had got a manifest.

    Then every file of it is newer; of a state that rots, or that somebody has edited, one is.
    """
    files = [path for path in folder.iterdir() if path.name != manifest.NAME]
    if not verdicts.has_manifest(folder) or any(path.name.startswith("fluxguard-") for path in files):
        return False
    listed_at = (folder / manifest.NAME).lstat().st_mtime
    return bool(files) and all(path.lstat().st_mtime > listed_at for path in files)


def without_manifest(folder: Path, plan: Plan) -> manifest.Manifest:
    """Return what an unhardened trainer's own words say of a state, its files left out. Raises StateUnusable."""
    epoch, step = verdicts.train_state(folder)
    true = true_step(epoch, step, plan.steps_per_epoch)
    if plan.planned_steps and true > plan.planned_steps:
        raise StateUnusable(folder, f"train_state.json names step {true} of {plan.planned_steps}")
    in_epoch = true - (epoch - 1) * plan.steps_per_epoch
    return manifest.Manifest(
        true_step=true,
        epoch=epoch,
        batch=min(in_epoch * plan.accumulation, plan.batches_per_epoch),
        world_size=len(list(folder.glob("random_states_*.pkl"))),
        batches_per_epoch=plan.batches_per_epoch,
        files={},
    )


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
