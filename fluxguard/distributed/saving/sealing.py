"""The folders of states: written aside, made durable, listed with digests, renamed, and the oldest removed."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.manifest import Manifest
from fluxguard.rundir import sync_folder

logger = logging.getLogger(__name__)

MODEL = "model.safetensors"
TRAINER = "trainer"
"""Stem of the files with what a trainer keeps beside its model."""
RANK = "rank-{}.json"

_NAME = re.compile(r"step-(\d{8,})")
_PARTIAL, _OLD = ".{}.partial", ".{}.old"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


def path_of(folder: Path, step: int) -> Path:
    """Return the name of the state of a step."""
    return folder / f"step-{step:08d}"


def step_of(state: Path) -> int | None:
    """Return the step in the name of a state; None when it is not such a name."""
    match = _NAME.fullmatch(state.name)
    return int(match[1]) if match else None


def found(folder: Path) -> list[int]:
    """Return the steps of all that may be a state of ours in a folder, newest first."""
    if not folder.is_dir():
        return []
    steps = (step_of(path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted((step for step in steps if step is not None), reverse=True)


def write(state: Path, fill: Callable[[Path], None], known: dict[str, Any]) -> Path:
    """Write a state aside, whole and durable, and return where; `known` is what its manifest says. Raises OSError."""
    partial = state.with_name(_PARTIAL.format(state.name))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    fill(partial)
    for path in partial.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    files = manifest.of_files(partial)
    manifest.write(partial, Manifest(files=files, asked=manifest.OURS, batches_per_epoch=0, **known))
    return partial


def discard(state: Path) -> None:
    """Remove what `write` has left; on a full disk its room is needed."""
    shutil.rmtree(state.with_name(_PARTIAL.format(state.name)), ignore_errors=True)


def publish(state: Path) -> None:
    """Give what `write` wrote its name; what had it before goes. Raises OSError."""
    aside = state.with_name(_OLD.format(state.name))
    shutil.rmtree(aside, ignore_errors=True)
    if state.exists():
        state.rename(aside)
    state.with_name(_PARTIAL.format(state.name)).rename(state)
    sync_folder(state.parent)
    shutil.rmtree(aside, ignore_errors=True)


def bring_back(folder: Path) -> None:
    """Give states their names again that a kill between two renames has left without, and clear away the rest."""
    for pattern in (_PARTIAL, _OLD):
        for hidden in folder.glob(pattern.format("step-*")):
            state = folder / hidden.name[1:].rpartition(".")[0]
            if step_of(state) is None:
                continue  # somebody else's
            try:
                manifest.verify(hidden)
                if state.exists():
                    raise StateUnusable(hidden, "has a successor")
                hidden.rename(state)
            except (StateUnusable, OSError):
                shutil.rmtree(hidden, ignore_errors=True)


def retain(folder: Path, newest: Path, count: int) -> None:
    """Remove our own states of this folder that are older than the `count` newest whole ones up to `newest`.

    What does not look whole does not count and stays, and so does what embodies more steps than `newest`. What cannot
    be removed stays with a warning.
    """
    last = step_of(newest)
    try:
        whole = [step for step in found(folder) if last is not None and step <= last and is_ours(path_of(folder, step))]
        for step in whole[max(1, count) :]:
            _remove(path_of(folder, step))
    except OSError as error:
        logger.warning("older states in %s could not be removed: %s", folder, error)


def _remove(doomed: Path) -> None:
    aside = doomed.with_name(_OLD.format(doomed.name))
    (doomed / manifest.NAME).unlink()  # so that no kill in between leaves anything that looks whole
    doomed.rename(aside)
    shutil.rmtree(aside)


def is_ours(state: Path) -> bool:
    """Return whether a state has a manifest of ours and files of the sizes in it; they are not read."""
    try:
        return glance(state).asked == manifest.OURS
    except StateUnusable:
        return False


def glance(state: Path) -> Manifest:
    """Return the manifest of a state whose files are there with their sizes. Raises StateUnusable."""
    known = manifest.read(state)
    for name, (size, _) in known.files.items():
        try:
            there = manifest.size_of(state, name)
        except StateUnusable:
            raise
        except OSError as error:
            raise StateUnusable(state, f"{name} cannot be read ({error.strerror})") from None
        if there != size:
            raise StateUnusable(state, f"{name} is {there} bytes, not {size}")
    return known


def identity(state: Path) -> str:
    """Return the word by which ranks on different disks know that they mean the same state. Raises StateUnusable."""
    try:
        found = json.loads((state / f"{TRAINER}.json").read_bytes())["identity"]
        if not _IDENTITY.fullmatch(found):
            raise ValueError
    except _UNREADABLE as error:
        raise StateUnusable(state, f"{TRAINER}.json cannot be read ({type(error).__name__})") from None
    return str(found)


def new_identity() -> str:
    """Return a word that no other state has."""
    return uuid.uuid4().hex
