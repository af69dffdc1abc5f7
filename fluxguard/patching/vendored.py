"""What hardening brings into a checkout besides its changes: the guard, and a signpost to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fluxguard.patching.places import FLUXGYM, IMPORT, PACKAGE, RULES, SIGNPOST

LEAVES = ("__init__", "errors", "clock", "limits", "heartbeat", "rundir", "manifest")
IMPORT_INSIDE = "from library import fluxguard"
"""The import line of files in folders; those at the root find the package beside them."""

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent


def guard() -> dict[str, bytes]:
    """Return the package that runs in the trainer: name in the package -> content."""
    paths = [_SOURCE / f"{leaf}.py" for leaf in LEAVES] + sorted((_SOURCE / "guard").glob("*.py"))
    return {path.relative_to(_SOURCE).as_posix(): path.read_bytes() for path in paths}


def vendored(kind: str) -> Mapping[str, bytes]:
    """Return all files that are brought into a checkout of a kind: name in the checkout -> content."""
    files = {f"{PACKAGE}/{name}": data for name, data in guard().items()}
    return files if kind == FLUXGYM else {**files, SIGNPOST: (_HERE / "signpost.py").read_bytes()}


def import_line(name: str) -> str:
    """Return how a file of a checkout imports the guard."""
    return IMPORT_INSIDE if "/" in name else IMPORT


def our_digest() -> str:
    """Return the digest of everything that decides what hardening writes: the rules, the engine and the guard."""
    files = [*sorted(RULES.glob("*.yaml")), *sorted(_HERE.glob("*.py"))]
    digest = hashlib.sha256()
    for data in (*(path.read_bytes() for path in files), *guard().values()):
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
