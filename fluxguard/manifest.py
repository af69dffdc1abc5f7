"""The manifest of a state: the one authority on which step it holds and whether it is whole.

It carries its own digest, so that a flipped bit in it shows like one in any other file. Nothing that it names is
followed out of the state, and nothing is opened that could block: a name is plain or it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from fluxguard.errors import StateUnusable
from fluxguard.rundir import sync_folder, write_json

NAME = "fluxguard-manifest.json"
VERSION = 2
"""Of the manifest. Version 1 had no digest of its own, and is still read."""
OURS = "fluxguard"
"""Who asked for a state, in its manifest, where it was not the user."""

Look = Callable[[int, memoryview], object]
"""Called with (offset in the file, bytes from there on), in order; the bytes are only lent."""

_OLDER = 1
_CHUNK = 1 << 20
_LARGEST = 4 << 20  # a manifest of some hundred files has some ten thousand bytes
_COUNTS = ("true_step", "epoch", "batch", "world_size", "batches_per_epoch")
_TEXTS = ("attempt", "asked")
_UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
_LOADABLE = {".bin", ".pkl", ".pt", ".pth", ".safetensors"}
"""What accelerate may load from a state without being asked to."""
_PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


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
    attempt: str = ""
    """The uuid of the attempt that saved it; empty without a supervisor, and where nobody knows."""
    asked: str = ""
    """Who asked for it: OURS, or nobody but the user."""


def of_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file in `folder`, the manifest itself left out."""
    return {name: digest(folder, name) for name in names(folder) if name != NAME}


def names(folder: Path) -> list[str]:
    """Return the relative names of all files in a state. Raises StateUnusable for anything but plain files."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            found.append(name)
        elif not stat.S_ISDIR(mode):
            raise StateUnusable(folder, f"{name} is {'a link' if stat.S_ISLNK(mode) else 'no plain file'}")
    return found


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a state, durable; whoever finds it may trust that the files came before it."""
    values = {**asdict(manifest), "version": VERSION}
    write_json(folder / NAME, {**values, "digest": own_digest(values)})
    sync_folder(folder)


def own_digest(values: dict[str, Any]) -> str:
    """Return the SHA-256 of what a manifest says, its layout and its own digest left out."""
    said = {name: value for name, value in values.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(folder: Path) -> Manifest:
    """Return the manifest of a state. Raises StateUnusable when there is none that can be believed."""
    try:
        with opened(folder, NAME) as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise StateUnusable(folder, "has no manifest") from None
    except OSError as error:
        raise _unreadable(folder, error) from None
    try:
        if len(text) > _LARGEST:
            raise ValueError
        values = json.loads(text, object_pairs_hook=once)
        version = values.pop("version")
        if version not in (VERSION, _OLDER):
            raise StateUnusable(folder, "its manifest is of another version")
        if version == VERSION and values.pop("digest") != own_digest({**values, "version": version}):
            raise StateUnusable(folder, "its manifest is not what was written (its digest differs)")
        return _manifest(folder, values)
    except _UNREADABLE as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: Exception) -> StateUnusable:
    if isinstance(error, StateUnusable):
        return error
    return StateUnusable(folder, f"its manifest cannot be read ({type(error).__name__})")


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the table of a JSON text; for `object_pairs_hook`. Raises ValueError for a name that comes twice."""
    listed = list(pairs)
    table = dict(listed)
    if len(table) != len(listed):
        raise ValueError("a name comes twice")
    return table


def _manifest(folder: Path, values: dict[str, Any]) -> Manifest:
    files = {}
    for name, (size, sha) in values.pop("files").items():
        if not _is_inside(name):
            raise StateUnusable(folder, f"its manifest names {name!r}, which is not in the state")
        files[name] = (_count(size), str(sha))
    known: dict[str, Any] = {name: _count(values.pop(name)) for name in _COUNTS}
    known |= {name: str(values.pop(name)) for name in _TEXTS if name in values}
    if values or not files:
        raise ValueError
    return Manifest(files=files, **known)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _is_inside(name: str) -> bool:
    """Whether a name can only be that of a file below the state, on any platform."""
    parts = PurePosixPath(name).parts
    windows = PureWindowsPath(name)
    plain = not windows.drive and not windows.root and "\\" not in name and "\0" not in name
    return plain and bool(parts) and ".." not in parts and PurePosixPath(name).as_posix() == name and name != NAME


def verify(folder: Path) -> Manifest:
    """Return the manifest when every file is there with its size and digest. Raises StateUnusable otherwise."""
    manifest = read(folder)
    refuse_strays(folder, manifest)
    for name in manifest.files:
        check(folder, manifest, name)
    return manifest


def refuse_strays(folder: Path, manifest: Manifest) -> None:
    """Raise StateUnusable for links and pipes in a state, and for files in it that only look as if saved with it."""
    strays = [name for name in names(folder) if name not in manifest.files and Path(name).suffix in _LOADABLE]
    if strays:
        raise StateUnusable(folder, f"{strays[0]} was not saved with it")


def check(folder: Path, manifest: Manifest, name: str, looks: Callable[[str], Look | None] = lambda _: None) -> None:
    """Raise StateUnusable unless a file is what the manifest says; one of another size is not read.

    `looks` names who sees the bytes of a file while they are read. A ValueError from either is the state's fault.
    """
    size, sha = manifest.files[name]
    try:
        found = size_of(folder, name)
        if found != size:
            raise StateUnusable(folder, f"{name} is {found} bytes, not {size}")
        if digest(folder, name, looks(name))[1] != sha:
            raise StateUnusable(folder, f"{name} is not what was saved (its digest differs)")
    except StateUnusable:
        raise
    except OSError as error:
        raise StateUnusable(folder, f"{name} cannot be read ({error.strerror or type(error).__name__})") from None
    except ValueError as error:  # what a look found, or a name that no file can have
        raise StateUnusable(folder, f"{name} {error}") from None


def size_of(folder: Path, name: str) -> int:
    """Return the size of a file of a state in bytes. Raises StateUnusable for no plain file, and OSError."""
    with opened(folder, name) as file:
        return os.fstat(file.fileno()).st_size


def digest(folder: Path, name: str, look: Look | None = None) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of a file of a state, read once and shown to `look`.

    Raises StateUnusable for no plain file, OSError, and whatever `look` raises.
    """
    sha = hashlib.sha256()
    size = 0
    with opened(folder, name) as file:
        for chunk in pieces(file):
            sha.update(chunk)
            if look is not None:
                look(size, chunk)
            size += len(chunk)
    return size, sha.hexdigest()


def pieces(file: BinaryIO) -> Iterator[memoryview]:
    """Yield a file from where it stands, piece by piece, always in the same memory."""
    view = memoryview(bytearray(min(_CHUNK, os.fstat(file.fileno()).st_size + 1)))
    while count := file.readinto(view):  # type: ignore[attr-defined]
        yield view[:count]


def opened(folder: Path, name: str) -> BinaryIO:
    """Open a plain file of a state for reading, unbuffered.

    Raises StateUnusable for a link, a pipe, a device or a folder, without following, blocking or waking it; OSError.
    """
    path = folder
    for part in PurePosixPath(name).parts:
        path = path / part
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise StateUnusable(folder, f"{path.relative_to(folder).as_posix()} is a link")
    if not stat.S_ISREG(mode):
        raise StateUnusable(folder, f"{name} is no plain file")
    fd = os.open(path, _PLAIN)
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # exchanged meanwhile
        os.close(fd)
        raise StateUnusable(folder, f"{name} is no plain file")
    return open(fd, "rb", buffering=0)
