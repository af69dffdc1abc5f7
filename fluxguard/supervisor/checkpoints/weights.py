"""Final weights: a training is finished only when they are new, parse, and hold nothing but finite numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.supervisor.checkpoints import tensors


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found in a weights file."""

    verified: bool
    reason: str
    """Why it does not verify, in words; how much was verified otherwise."""
    finite: bool = True
    """Whether nothing in it is known to be no number."""


def verify(path: Path, *, newer_than: float) -> Verdict:
    """Return whether `path` holds weights written after `newer_than` (seconds since the epoch), whole and finite."""
    if path.suffix != ".safetensors":
        return _no(path, ": only .safetensors can be verified")
    try:
        if path.stat().st_mtime < newer_than:
            return _no(path, " is older than the run: it was not written by it")
        real = path.resolve()
        with manifest.opened(real.parent, real.name) as file:
            found = _all_finite(file)
    except FileNotFoundError:
        return _no(path, " was not written")
    except StateUnusable as unusable:
        return _no(path, f" does not parse ({unusable.reason})")
    except OSError as error:
        return _no(path, f" does not parse ({error})")
    except tensors.NotFinite as error:
        return replace(_no(path, f" {error}"), finite=False)
    except ValueError as error:  # in words that follow a name
        return _no(path, f" {error}")
    return Verdict(verified=True, reason=f"{found} tensors, all finite")


def _all_finite(file: BinaryIO) -> int:
    """Return how many tensors a file holds. Raises ValueError for one that is broken or not finite, and OSError."""
    found = tensors.header(file)
    if not found:
        raise ValueError("holds no tensors")
    finite = tensors.Finite(found)
    at = file.seek(0)
    for piece in manifest.pieces(file):
        finite.look(at, piece)
        at += len(piece)
    if at < found[-1].end:
        raise ValueError("was cut short while it was read")
    return len(found)


def _no(path: Path, why: str) -> Verdict:
    return Verdict(verified=False, reason=f"{path.name}{why}")
