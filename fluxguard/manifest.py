"""The manifest of a state: the one authority on which step it holds and whether it is whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fluxguard.errors import StateUnusable
from fluxguard.rundir import VERSION, sync_folder, write_json

NAME = "fluxguard-manifest.json"
_CHUNK = 1 << 20
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a state holds."""

    true_step: int
    """Optimizer steps embodied in its weights, counted over all attempts."""
    epoch: int
    """The epoch in which it was saved, counted from 1."""
    batch: int
    """Batches of that epoch it embodies; 0 together with the next epoch's number never occurs: an epoch's last batch
    belongs to its own epoch."""
    world_size: int
    """Trainer processes that took part."""
    batches_per_epoch: int
    """Batches one process trains in an epoch; 0 when unknown."""
    files: dict[str, tuple[int, str]]
    """Relative name -> (size in bytes, SHA-256 in hex)."""


def of_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file in `folder`, the manifest itself left out."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, _sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != NAME
    }


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a state, durable; whoever finds it may trust that the files came before it."""
    write_json(folder / NAME, asdict(manifest))
    sync_folder(folder)


def read(folder: Path) -> Manifest:
    """Return the manifest of a state. Raises StateUnusable when there is none that can be read."""
    path = folder / NAME
    try:
        values = json.loads(path.read_bytes())
        found = _manifest(values) if values.pop("version") == VERSION else None
    except FileNotFoundError:
        raise StateUnusable(folder, "has no manifest") from None
    except _UNREADABLE as error:
        raise StateUnusable(folder, f"its manifest cannot be read ({type(error).__name__})") from None
    if found is None:
        raise StateUnusable(folder, "its manifest is of another version")
    return found


def _manifest(values: dict[str, Any]) -> Manifest:
    files = {name: (int(size), str(digest)) for name, (size, digest) in values.pop("files").items()}
    return Manifest(files=files, **{key: int(value) for key, value in values.items()})


def verify(folder: Path) -> Manifest:
    """Return the manifest when every file is there with its size and digest. Raises StateUnusable otherwise."""
    manifest = read(folder)
    for name, (size, digest) in manifest.files.items():
        try:
            found, same = _compare(folder / name, size, digest)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise StateUnusable(folder, f"{name} cannot be read ({reason})") from None
        if found != size:
            raise StateUnusable(folder, f"{name} is {found} bytes, not {size}")
        if not same:
            raise StateUnusable(folder, f"{name} is not what was saved (its digest differs)")
    return manifest


def _compare(path: Path, size: int, digest: str) -> tuple[int, bool]:
    """Return the size of a file and whether its digest is `digest`; one of another size is not read."""
    found = path.stat().st_size
    return found, found == size and _sha256(path) == digest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
