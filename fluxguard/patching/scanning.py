"""Scanning any training repository: what may wait for ever, what only some ranks come to, what is set up wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ast_grep_py import SgRoot

from fluxguard.errors import InputError
from fluxguard.patching import checkout as checkouts
from fluxguard.patching import scan_examples, scan_setups, scan_sites
from fluxguard.patching.rules import Edit, load_rules
from fluxguard.patching.scan_kinds import ON_SOME_RANKS
from fluxguard.patching.scan_sites import Found

LORA, ALL = "lora", "all"
PATHS = (LORA, ALL)
RANK_SEVERITY = "critical"

_ORDER = ("critical", "high", "medium", "low")
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "test", "tests", "venv"}
)
_SKIPPED_FILES = ("test_", "conftest.py")
_OF_A_VENV = "pyvenv.cfg"
_OURS = "fluxguard"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One call that is to be looked at."""

    file: str
    """Relative to the folder that was scanned."""
    line: int
    kind: str
    severity: str
    why: str
    function: str
    code: str
    condition: str = ""
    """The condition on the rank under which it stands."""
    on_path: bool | None = None
    """Whether a FLUX LoRA training may come here; None where that cannot be told."""

    def to_mapping(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a scan found."""

    folder: Path
    findings: tuple[Finding, ...]
    files: int
    """Files that were looked at."""
    skipped: Mapping[str, str]
    """Files that could not be, with the reason."""

    def counts(self) -> dict[str, int]:
        """Return how many findings there are of each kind."""
        return dict(sorted(Counter(finding.kind for finding in self.findings).items()))

    def examples(self) -> dict[str, str]:
        """Return what to write instead, as a small diff, for each kind that was found."""
        return {kind: scan_examples.of(kind).diff() for kind in self.counts()}

    def to_mapping(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "folder": str(self.folder),
            "files": self.files,
            "counts": self.counts(),
            "examples": self.examples(),
            "findings": [finding.to_mapping() for finding in self.findings],
            "skipped": dict(self.skipped),
        }


def scan(folder: str | os.PathLike[str], *, path: str = ALL) -> Scan:
    """Return what waits in the Python files of `folder`; tests and virtual environments are left out.

    `path` is `lora` for those that a FLUX LoRA training of sd-scripts may come to, or `all`. Raises InputError when
    `folder` is none, holds no Python, or is no sd-scripts checkout although `path` says so.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(folder, "is no folder")
    if path not in PATHS:
        raise InputError("--path", f"must be one of {', '.join(PATHS)}")
    contents = {file.relative_to(root).as_posix(): file.read_bytes() for file in _files(root)}
    if not contents:
        raise InputError(folder, "holds no Python file to scan")
    known = checkouts.FLUX in contents
    if path == LORA and not known:
        raise InputError(folder, f"is no sd-scripts checkout with FLUX (it has no {checkouts.FLUX})", "--path")
    on_path = checkouts.on_the_path(contents) if known else frozenset()
    chosen = {name: data for name, data in contents.items() if path == ALL or name in on_path}
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    sets_epoch = any(scan_setups.SETS_EPOCH.encode() in data for data in contents.values())
    guarding = [edit for rule in load_rules() for edit in rule.edits if edit.guarded is not None]
    for name, data in chosen.items():
        try:
            there = _found(data, guarding, sets_epoch=sets_epoch)
        except (SyntaxError, ValueError, RecursionError) as error:
            skipped[name] = _reason(error)
        else:
            found += [_finding(name, one, name in on_path if known else None) for one in there]
    found.sort(key=lambda one: (not one.on_path, _ORDER.index(one.severity), one.file, one.line))
    return Scan(folder=root, findings=tuple(found), files=len(chosen), skipped=skipped)


def _files(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _is_skipped(Path(folder, name)))
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith(_SKIPPED_FILES) and path.is_file():
                yield path


def _is_skipped(folder: Path) -> bool:
    if folder.name in _SKIPPED_FOLDERS or folder.name.startswith(".") or (folder / _OF_A_VENV).is_file():
        return True
    return folder.name == _OURS and (folder / "guard" / "deadlines.py").is_file()


def _found(data: bytes, guarding: list[Edit], *, sets_epoch: bool) -> list[Found]:
    text, _, _ = checkouts.decode(data)
    if not scan_sites.may_hold(text):
        return []
    return scan_sites.find(text, _guarded_lines(text, guarding), sets_epoch=sets_epoch)


def _guarded_lines(text: str, guarding: list[Edit]) -> set[int]:
    """Return the lines of what a rule knows as guarded by somebody else."""
    needed = [edit.guarded for edit in guarding if any(literal in text for literal in edit.literals)]
    if not needed:
        return set()
    root = SgRoot(text, "python").root()
    nodes = (node for guarded in needed for node in root.find_all({"rule": guarded}))  # type: ignore[call-overload]
    return {node.range().start.line + 1 for node in nodes}


def _finding(name: str, found: Found, on_path: bool | None) -> Finding:
    why, severity = found.kind.why, found.kind.severity
    if found.condition:
        why = f"only some ranks come here ({found.condition}); "
        why += f"{found.through}; " if found.through else ""
        if found.kind.name == "state":
            why += "with DeepSpeed or FSDP every rank has to, or this one waits for ever"
        elif found.kind.name == "break":
            why, severity = why + "the others wait for this one in their next step, for ever", RANK_SEVERITY
        else:
            why, severity = why + "the one waits here and the others elsewhere, for ever", RANK_SEVERITY
    return Finding(
        file=name,
        line=found.line,
        kind=f"{found.kind.name}{ON_SOME_RANKS}" if found.condition else found.kind.name,
        severity=severity,
        why=why,
        function=found.function,
        code=found.code,
        condition=found.condition,
        on_path=on_path,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return str(error) or type(error).__name__
