"""States that are whole or not there: written aside, made durable, listed with digests, and renamed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from fluxguard import limits, manifest
from fluxguard.clock import Clock, SystemClock
from fluxguard.errors import StateUnusable
from fluxguard.guard import losses, pulse, resume
from fluxguard.guard.randoms import States
from fluxguard.manifest import Manifest
from fluxguard.rundir import sync_folder, write_json

logger = logging.getLogger(__name__)

RANDOM = "fluxguard-random.json"
"""Random states, as plain values: loading a state of ours never unpickles them."""
RANK_RANDOM = "fluxguard-random-{}.json"
"""Those of another process than the first, where it takes part in a save."""
TRAIN_STATE = "train_state.json"
"""The trainer's own count."""

_COLLECTIVE = ("DEEPSPEED", "FSDP", "MEGATRON_LM")
_LOOK = 0.2
_PARTIAL, _OLD, _REMOVED = ".{}.partial", ".{}.old", ".{}.removed"
"""Names under which no one takes a folder for a state: being written, being replaced, being removed."""


class _Newest:
    """The newest state that this process has saved."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.at = 0.0


_newest = _Newest()


def newest() -> tuple[int | None, float]:
    """Return the true step of the newest state of this process, None without one, and when it was saved (monotonic)."""
    return _newest.step, _newest.at


def is_collective(accelerator: Any) -> bool:
    """Return whether each process saves a part of its own, so that no process can save alone."""
    return any(kind in str(accelerator.distributed_type) for kind in _COLLECTIVE)


def save_state(
    accelerator: Any, state_dir: str | os.PathLike[str], clock: Clock | None = None, *, asked: str = ""
) -> None:
    """Save a state so that under its name there is a whole one or none; `asked` is who wanted it, for its manifest.

    Raises OSError (a full disk) and whatever accelerate raises; what was under that name before is then untouched.
    """
    clock = clock or SystemClock()
    if is_collective(accelerator):
        accelerator.save_state(str(state_dir))  # every process writes its part: only they know when all is there
        return
    target = Path(state_dir).absolute()
    if not accelerator.is_main_process:
        _join(accelerator.process_index, target, clock)
        return
    partial = target.with_name(_PARTIAL.format(target.name))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        accelerator.save_state(str(partial))
        _newest.step = _seal(partial, accelerator.num_processes, asked)
        _rename(partial, target)
        _newest.at = clock.monotonic()
        losses.saved(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk its room is needed
        raise


def _join(rank: int, target: Path, clock: Clock) -> None:
    """Add the random states of this process to the state that the first process saves.

    It is the one that waits: the first process saves alone in most trainers, and cannot know who else would come.
    """
    here = resume.position()
    if here is None:
        return
    states = resume.states_to_save()
    limit = limits.current().wait.barrier
    began = clock.monotonic()
    while not _holds(target, here.step):
        if limit is not None and clock.monotonic() - began > limit:
            logger.warning(
                "%s was not saved within %g s: the random states of process %d are not in it", target, limit, rank
            )
            return
        clock.sleep(_LOOK)
    write_json(target / RANK_RANDOM.format(rank), {"true_step": here.step, **states})


def _holds(state: Path, step: int) -> bool:
    try:
        return manifest.read(state).true_step == step
    except StateUnusable:
        return False


def _seal(folder: Path, world_size: int, asked: str) -> int | None:
    """Complete a state, make it durable and return its true step; the manifest comes last."""
    here = resume.position()
    if here is None:  # a loop that is not one of ours: nobody knows which batches it has seen
        _make_durable(folder)
        return None
    step = _count(folder, here)
    write_json(folder / RANDOM, resume.states_to_save())
    _make_durable(folder)
    manifest.write(
        folder,
        Manifest(
            true_step=step,
            epoch=here.epoch,
            batch=here.batch,
            world_size=world_size,
            batches_per_epoch=here.batches_per_epoch,
            files=manifest.of_files(folder),
            attempt=pulse.attempt(),
            asked=asked,
        ),
    )
    return step


def _count(folder: Path, here: resume.Position) -> int:
    """Return the true step, and see to it that the trainer's own file says the same.

    Its count is right, `resume_point` has made it so, but for a trainer that writes none or has trained nothing yet.
    """
    values = _train_state(folder)
    told = _told(values)
    if told is not None and here.trained:
        return told[1]
    text = json.dumps({**values, "current_epoch": here.epoch, "current_step": here.step})
    (folder / TRAIN_STATE).write_text(text, encoding="utf-8")
    return here.step


def _train_state(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / TRAIN_STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _told(values: dict[str, Any]) -> tuple[int, int] | None:
    try:
        return int(values["current_epoch"]), int(values["current_step"])
    except (ValueError, KeyError, TypeError):
        return None


def _make_durable(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def _rename(partial: Path, target: Path) -> None:
    aside = target.with_name(_OLD.format(target.name))
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    partial.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def remove_state(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Remove a state that `new` has made superfluous, when `new` is whole and the next loss is a number; never `new`.

    A kill in between leaves nothing that looks like a state. Whatever cannot be removed stays, with a warning.
    """
    doomed, kept = Path(old).absolute(), Path(new).absolute()
    if doomed == kept or (doomed.exists() and kept.exists() and doomed.samefile(kept)):
        logger.warning("%s is kept: it is the state that was just saved", doomed)
        return
    try:
        if (kept / manifest.NAME).exists() or resume.position() is not None:
            manifest.verify(kept)
        elif not kept.is_dir():
            raise StateUnusable(kept, "was not saved")
    except StateUnusable as unusable:
        logger.warning("%s is kept: %s", doomed, unusable)
        return
    losses.once_good(lambda: _remove(doomed))


def _remove(doomed: Path) -> None:
    for left in doomed.parent.glob(_REMOVED.format("*")):  # by a kill during an earlier removal
        shutil.rmtree(left, ignore_errors=True)
    aside = doomed.with_name(_REMOVED.format(doomed.name))
    try:
        doomed.rename(aside)
        shutil.rmtree(aside)
    except OSError as error:
        logger.warning("%s could not be removed: %s", doomed, error)


def load_state(accelerator: Any, path: str | os.PathLike[str]) -> None:
    """Load a state and remember what it says about where to go on.

    Raises StateUnusable when it has a manifest and does not match it, before anything was loaded, and whatever
    accelerate raises.
    """
    folder = Path(path)
    _bring_back(folder.absolute())
    known = manifest.verify(folder) if (folder / manifest.NAME).exists() else None
    states = _random_states(folder, known, getattr(accelerator, "process_index", 0)) if known is not None else None
    try:
        accelerator.load_state(str(path))
    except KeyError as error:
        if not _is_late_step_error(error) or getattr(accelerator, "_custom_objects", None):
            raise
        logger.warning("accelerate could not read its own random states; ours are used where the state has them")
    told = _told(_train_state(folder))
    resume.loaded(resume.Loaded(folder=folder, manifest=known, states=states, told=told))
    losses.loaded(folder.absolute())


def _bring_back(folder: Path) -> None:
    """Give a state its name again that a kill between the two renames of a save has left without."""
    if folder.exists():
        return
    for name in (_PARTIAL, _OLD):
        hidden = folder.with_name(name.format(folder.name))
        try:
            manifest.verify(hidden)
            hidden.rename(folder)
            return
        except (StateUnusable, OSError):
            continue


def _random_states(folder: Path, known: Manifest, rank: int) -> dict[str, States] | None:
    """Return the random states of this process; those of the first one where it did not take part in the save."""
    own = folder / RANK_RANDOM.format(rank)
    if rank and not own.exists():
        logger.warning("the state holds no random states of process %d: it goes on with those of process 0", rank)
    path = own if own.exists() else folder / RANDOM
    if not path.exists():  # sealed by the supervisor for a trainer that was not hardened
        logger.warning("the state holds no random states of ours: order and noise are not those of before")
        return None
    try:
        values = json.loads(path.read_bytes())
        if values.get("true_step", known.true_step) != known.true_step:
            raise StateUnusable(folder, f"{path.name} belongs to step {values['true_step']}")
        return {name: values[name] for name in ("base", "order", "now") if values[name] is not None}
    except (ValueError, KeyError, AttributeError) as error:
        raise StateUnusable(folder, f"{path.name} cannot be read ({type(error).__name__})") from None


def _is_late_step_error(error: KeyError) -> bool:
    """Return whether this is accelerate 0.33's fault with torch 2.6 and later.

    Its load_state asks for an entry "step" that is missing when the random states could not be unpickled, after
    weights, optimizer and scheduler were loaded; an equal error from deeper inside is another one.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return error.args == ("step",) and frame is not None and frame.tb_frame.f_code.co_name == "load_state"
