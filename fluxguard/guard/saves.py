"""States that are whole or not there: written aside, made durable, listed with digests, and renamed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.guard import resume
from fluxguard.manifest import Manifest
from fluxguard.rundir import sync_folder, write_json

logger = logging.getLogger(__name__)

RANDOM = "fluxguard-random.json"
"""Random states, as plain values: loading a state of ours never unpickles them."""
TRAIN_STATE = "train_state.json"
"""The trainer's own count."""

_COLLECTIVE = ("DEEPSPEED", "FSDP", "MEGATRON_LM")


def save_state(accelerator: Any, state_dir: str | os.PathLike[str]) -> None:
    """Save a state so that under its name there is a whole one or none.

    Raises OSError (a full disk) and whatever accelerate raises; what was under that name before is then untouched.
    """
    if any(kind in str(accelerator.distributed_type) for kind in _COLLECTIVE):
        accelerator.save_state(str(state_dir))  # every process writes its part: only they know when all is there
        return
    if not accelerator.is_main_process:
        return
    target = Path(state_dir).absolute()
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        accelerator.save_state(str(partial))
        _seal(partial, accelerator.num_processes)
        _rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk its room is needed
        raise


def _seal(folder: Path, world_size: int) -> None:
    """Complete a state and make it durable; the manifest comes last."""
    here = resume.position()
    if here is None:  # a loop that is not one of ours: nobody knows which batches it has seen
        _make_durable(folder)
        return
    step = _true_step(folder, here)
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
        ),
    )


def _true_step(folder: Path, here: resume.Position) -> int:
    """Return the trainer's count, which `resume_point` has made true; counted from the batches where it has none."""
    path = folder / TRAIN_STATE
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["current_step"])
    except (OSError, ValueError, KeyError, TypeError):
        path.write_text(json.dumps({"current_epoch": here.epoch, "current_step": here.step}), encoding="utf-8")
        return here.step


def _make_durable(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def _rename(partial: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    partial.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def load_state(accelerator: Any, path: str | os.PathLike[str]) -> None:
    """Load a state and remember what it says about where to go on.

    Raises StateUnusable when it has a manifest and does not match it, before anything was loaded, and whatever
    accelerate raises.
    """
    folder = Path(path)
    known = manifest.verify(folder) if (folder / manifest.NAME).exists() else None
    states = _random_states(folder) if known is not None else None
    try:
        accelerator.load_state(str(path))
    except KeyError as error:
        if not _is_late_step_error(error) or getattr(accelerator, "_custom_objects", None):
            raise
        logger.warning("accelerate could not read its own random states; ours are used where the state has them")
    resume.loaded(known, states)


def _random_states(folder: Path) -> dict[str, resume.States] | None:
    path = folder / RANDOM
    if not path.exists():  # sealed by the supervisor for a trainer that was not hardened
        return None
    try:
        values = json.loads(path.read_bytes())
        return {name: values[name] for name in ("base", "order", "now") if values[name] is not None}
    except (ValueError, KeyError) as error:
        raise StateUnusable(folder, f"{RANDOM} cannot be read ({type(error).__name__})") from None


def _is_late_step_error(error: KeyError) -> bool:
    """Return whether this is accelerate 0.33's fault with torch 2.6 and later.

    Its load_state asks for an entry "step" that is missing when the random states could not be unpickled, after
    weights, optimizer and scheduler were loaded; an equal error from deeper inside is another one.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return error.args == ("step",) and frame is not None and frame.tb_frame.f_code.co_name == "load_state"
