"""The originals of hardened files."""

from __future__ import annotations

from pathlib import Path

from fluxguard.errors import PatchError
from fluxguard.patching import stamp as stamps
from fluxguard.patching.checkout import digest
from fluxguard.patching.places import ORIGINALS


def original(root: Path, name: str, *, like: bytes, known: stamps.Digests) -> bytes:
    """Return what a hardened file was, with the line breaks it has now. Raises PatchError when that is lost."""
    data = stamps.content(root / ORIGINALS / name)
    if data is None:
        raise PatchError(f"{root / ORIGINALS / name}: is gone; bring {name} back with `git checkout -- {name}`")
    relined = digest(like) != known.after and stamps.is_relined(like, known)
    return stamps.with_breaks_of(data, like) if relined else data
