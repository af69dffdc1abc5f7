"""Whether a state is whole: its files, its numbers, and what it would do when it is loaded. Nothing is unpickled."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.manifest import Look, Manifest
from fluxguard.supervisor.checkpoints import pickles, tensors

FILES = ("train_state.json", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
"""What accelerate leaves in a state of a LoRA training, in the order it is written; fewer means it was cut short."""
MODEL = "model.safetensors"
_OPTIMIZER, _SCHEDULER = "optimizer.bin", "scheduler.bin"
_SCHEDULED = b"initial_lr"
"""What every scheduler of torch's writes into the optimizer that it steers."""

_ARCHIVES = (".bin", ".pkl", ".pt")
_AT_ONCE = 2  # files: the digest of one is reckoned while another is read
_SMALL = 32 << 20  # bytes in all below which a thread would cost more than it brings
_LONGEST_JSON = 1 << 16
_OURS = "fluxguard-"
"""How the names begin of what a hardened trainer adds to a state."""


def quick(folder: Path) -> Manifest | None:
    """Return the manifest of a state, None where it has none, once all is there that can be seen without reading it.

    Raises StateUnusable: a file is missing, cut short, no plain file, or would run something when it is loaded.
    """
    if not has_manifest(folder):
        _complete(folder)
        for name in manifest.names(folder):
            _asked(folder, name)
        return None
    known = manifest.read(folder)
    manifest.refuse_strays(folder, known)
    for name, (size, _) in known.files.items():
        try:
            found = manifest.size_of(folder, name)
        except StateUnusable:
            raise
        except (OSError, ValueError) as error:
            raise StateUnusable(folder, f"{name} cannot be read ({_why(error)})") from None
        if found != size:
            raise StateUnusable(folder, f"{name} is {found} bytes, not {size}")
    return known


def verified(folder: Path) -> Manifest:
    """Return the manifest when every file is as it was saved, and every weight finite. Raises StateUnusable."""
    known = manifest.read(folder)
    manifest.refuse_strays(folder, known)
    names = sorted(known.files, key=lambda name: known.files[name][0], reverse=True)
    if sum(size for size, _ in known.files.values()) < _SMALL:
        for name in names:
            _as_saved(folder, known, name)
    else:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in [pool.submit(_as_saved, folder, known, name) for name in names]:
                done.result()
    return known


def _as_saved(folder: Path, known: Manifest, name: str) -> None:
    """Raise StateUnusable unless a file is what its manifest says, and harmless."""
    if Path(name).suffix not in _ARCHIVES:
        manifest.check(folder, known, name, functools.partial(_look, folder, trusted=True))
        return
    manifest.check(folder, known, name)
    _asked(folder, name, trusted=True)


def sound(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file of a state that has no manifest, once all of it is whole.

    That is: every file there, every CRC right, every weight finite. Raises StateUnusable, and OSError.
    """
    _complete(folder)
    found = {}
    for name in manifest.names(folder):
        try:
            found[name] = manifest.digest(folder, name, _look(folder, name, trusted=False))
        except ValueError as error:
            raise StateUnusable(folder, f"{name} {error}") from None
    return found


def train_state(folder: Path) -> tuple[int, int]:
    """Return the epoch, from 1, and the step that the trainer itself has written down. Raises StateUnusable."""
    name = FILES[0]
    try:
        with manifest.opened(folder, name) as file:
            values = json.loads(file.read(_LONGEST_JSON), object_pairs_hook=manifest.once)
        epoch, step = values["current_epoch"], values["current_step"]
        if type(epoch) is not int or type(step) is not int:
            raise ValueError
    except StateUnusable:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise StateUnusable(folder, f"{name} cannot be read") from None
    if epoch < 1 or step < 1:
        raise StateUnusable(folder, f"{name} names epoch {epoch}, step {step}")
    return epoch, step


def has_manifest(folder: Path) -> bool:
    """Whether something lies where the manifest of a state is, whatever it is."""
    try:
        (folder / manifest.NAME).lstat()
    except OSError:
        return False
    return True


def network_of(folder: Path) -> tuple[tensors.Tensor, ...]:
    """Return the tensors of the weights of a state, by their names and shapes; none where they cannot be read."""
    try:
        with manifest.opened(folder, MODEL) as file:
            return tensors.header(file)
    except (OSError, ValueError):
        return ()


def _complete(folder: Path) -> None:
    there = manifest.names(folder)
    if any(name.startswith(_OURS) for name in there):
        raise StateUnusable(folder, "its manifest is missing")
    missing = [name for name in FILES if name not in there]
    if missing and (missing != [_SCHEDULER] or _has_schedule(folder)):
        raise StateUnusable(folder, f"{missing[0]} is missing: the state was cut short")
    ranks = sum(name.startswith("random_states_") for name in there)
    if any(f"random_states_{rank}.pkl" not in there for rank in range(ranks)):
        raise StateUnusable(folder, "random states of some processes are missing")
    train_state(folder)


def _has_schedule(folder: Path) -> bool:
    """Whether a scheduler steered the optimizer of a state: upstream gives a schedule-free one none that is saved."""
    try:
        with manifest.opened(folder, _OPTIMIZER) as file:
            return _SCHEDULED in pickles.program(file)
    except ValueError as error:
        raise StateUnusable(folder, f"{_OPTIMIZER} {error}") from None


def _asked(folder: Path, name: str, *, trusted: bool = False) -> None:
    try:
        _look(folder, name, trusted=trusted)
    except ValueError as error:
        raise StateUnusable(folder, f"{name} {error}") from None


def _look(folder: Path, name: str, *, trusted: bool) -> Look | None:
    """Return who is to see the bytes of a file while they are read. Raises ValueError for what nobody needs to read.

    What has a digest needs no CRC.
    """
    suffix = Path(name).suffix
    if suffix == ".safetensors":
        with manifest.opened(folder, name) as file:
            return tensors.Finite(tensors.header(file)).look
    if suffix in _ARCHIVES:
        with manifest.opened(folder, name) as file:
            members = pickles.members(file, trusted=trusted)
        return None if trusted else pickles.Crcs(members).look
    return None


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
