"""States that a loop has saved by `distributed.save_state`: found by their manifests, listed, and left to the loop."""

from __future__ import annotations

import re
from pathlib import Path

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.manifest import Manifest
from fluxguard.supervisor.checkpoints import verdicts

_NAME = re.compile(r"step-\d{8,}")
_TRAINER = "trainer.json"
"""What each of them holds, and no state of sd-scripts."""


def found(output_dir: Path) -> list[Path]:
    """Return what looks like one in an output folder and in the folders of it, newest first; nothing hidden."""
    try:
        inner = [one for one in output_dir.iterdir() if _is_folder(one)]
    except OSError:
        return []
    there = [one for folder in (output_dir, *inner) for one in _states(folder)]
    return sorted(there, key=lambda one: (int(one.name.partition("-")[2]), str(one)), reverse=True)


def judged(folder: Path, *, verify: bool) -> Manifest:
    """Return what one says of itself; `verify` reads all of it, as `newest_state` does. Raises StateUnusable."""
    if verify:
        return manifest.verify(folder)
    known = manifest.read(folder)
    verdicts.quick(folder)
    return known


def _states(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if _NAME.fullmatch(one.name) and _is_folder(one) and _is_one(one)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink()


def _is_one(state: Path) -> bool:
    try:
        return (state / _TRAINER).exists() or _TRAINER in manifest.read(state).files
    except StateUnusable:
        return False
