"""The stamp in a hardened checkout: what was changed, by which version, and how everything was left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fluxguard.patching.checkout import digest
from fluxguard.patching.places import STAMP
from fluxguard.rundir import VERSION, read_json

AS_LEFT, ORIGINAL, REPLACED, EDITED, GONE = "as left", "original", "replaced", "edited", "gone"
MARK = b"  # fluxguard: "


@dataclass(frozen=True, kw_only=True)
class Digests:
    """How one hardened file is recognised."""

    before: str
    after: str
    text: str = ""
    """Of `after` without carriage returns: git may change all line breaks of a file."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which rules the user wants."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @classmethod
    def of(cls, only: Iterable[str], skip: Iterable[str]) -> Choice:
        """Return a choice, the same one for the same rules however they were named."""
        return cls(only=tuple(sorted(set(only))), skip=tuple(sorted(set(skip))))

    def wants(self, rule: str) -> bool:
        """Return whether a rule is to be applied."""
        return (not self.only or rule in self.only) and rule not in self.skip


ALL = Choice()


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What is known of a hardened checkout."""

    digest: str
    """Of rules, engine and guard."""
    files: Mapping[str, Digests]
    vendored: Mapping[str, str]
    """What was brought into the checkout -> digest."""
    tree: str = ""
    """Of all sources, changed or not, as hardening left them."""
    choice: Choice = ALL
    whole: bool = True
    """Whether every required rule was chosen."""
    report: Mapping[str, Any] | None = None
    """What was said then; holds as long as `digest` and `tree` do."""
    python: str | None = None
    """The interpreter that hardened a FluxGym: what runs in its page finds us by it."""

    def to_bytes(self) -> bytes:
        """Return the stamp as its file holds it."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return json.dumps({"version": VERSION, **values}, indent=1, ensure_ascii=False).encode() + b"\n"


def read(root: Path) -> Stamp | None:
    """Return the stamp of a checkout; None when it was not hardened (or its stamp is not readable)."""
    values = read_json(root / STAMP)
    if values is None:
        return None
    try:
        del values["version"]
        values["files"] = {name: Digests(**digests) for name, digests in values["files"].items()}
        values["choice"] = Choice(**{key: tuple(ids) for key, ids in values.get("choice", {}).items()})
        return Stamp(**values)
    except (KeyError, TypeError, AttributeError):
        return None


def digests(before: bytes, after: bytes) -> Digests:
    """Return how a file that hardening changed is recognised later."""
    return Digests(before=digest(before), after=digest(after), text=digest(_unix(after)))


def state_of(data: bytes | None, known: Digests) -> str:
    """Return what became of a hardened file, from what is in its place now.

    A file that is empty or holds null bytes was torn by a power loss: nothing of it is worth keeping.
    """
    if data is None:
        return GONE
    if (found := digest(data)) in (known.after, known.before):
        return AS_LEFT if found == known.after else ORIGINAL
    if not data or b"\0" in data or (is_relined(data, known)):
        return AS_LEFT
    return EDITED if MARK in data else REPLACED


def is_relined(data: bytes, known: Digests) -> bool:
    """Return whether a file is as it was left except for its line breaks, all of one kind."""
    breaks = data.count(b"\n"), data.count(b"\r\n")
    return breaks[1] in (0, breaks[0]) and bool(known.text) and digest(_unix(data)) == known.text


def with_breaks_of(data: bytes, like: bytes) -> bytes:
    """Return `data` with the line breaks of `like`."""
    return _unix(data).replace(b"\n", b"\r\n") if b"\r\n" in like else _unix(data)


def _unix(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


def edited(root: Path, stamp: Stamp) -> tuple[str, ...]:
    """Return the files of ours that were edited since: taking them back would lose the edit."""
    hardened = (name for name, known in stamp.files.items() if state_of(content(root / name), known) == EDITED)
    brought = (name for name, known in stamp.vendored.items() if _differs(content(root / name), known))
    return (*hardened, *brought)


def _differs(data: bytes | None, known: str) -> bool:
    return data is not None and digest(data) != known


def content(path: Path) -> bytes | None:
    """Return what a file holds; None when it is not there."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def tree_digest(sources: Iterable[tuple[str, bytes]]) -> str:
    """Return one digest of all sources: their names and what they hold."""
    return digest("".join(f"{name}\0{digest(data)}\n" for name, data in sorted(sources)).encode())
