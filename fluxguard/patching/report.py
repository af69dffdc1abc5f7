"""What hardening says: values that the command line shows, the stamp keeps, and scripts read as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one rule does in a checkout."""

    rule: str
    title: str
    severity: str
    required: bool
    sites: int
    """Sites guarded, by us or by somebody else."""
    unguarded: int
    """Sites found and not guarded (yet)."""
    files: tuple[str, ...]
    """Files with a site."""
    missed: bool
    """A required rule that found nothing to protect, or could not protect what it found."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A site that cannot be changed and stays unguarded."""

    file: str
    line: int
    """In the original."""
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What hardening did, or what a check found."""

    checkout: Path
    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    """Files that could not be searched, with the reason."""
    changed: tuple[str, ...] = ()
    """Files that hardening changes."""
    edited: tuple[str, ...] = ()
    """Hardened files that were edited since."""
    failed: tuple[Failed, ...] = ()
    """Sites that cannot be changed."""
    lost: tuple[str, ...] = ()
    """Files of the guard that are not there although hardened files call it."""
    left_out: tuple[str, ...] = ()
    """Rules that the user chose to do without."""

    @property
    def missed(self) -> tuple[str, ...]:
        """Required rules that found nothing, or could not protect what they found."""
        return tuple(row.rule for row in self.rows if row.missed)

    @property
    def hardened(self) -> bool:
        """Whether every required rule is in force and no site is open."""
        return not self.edited and not self.lost and not any(row.missed or row.unguarded for row in self.rows)

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "checkout": str(self.checkout),
            "hardened": self.hardened,
            "rules": [{**asdict(row), "files": list(row.files)} for row in self.rows],
            "left_out": list(self.left_out),
            "skipped": dict(self.skipped),
            "failed": [asdict(failed) for failed in self.failed],
            "edited": list(self.edited),
            "lost": list(self.lost),
            "changed": list(self.changed),
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Report:
        """Return what `to_mapping` wrote."""
        return cls(
            checkout=Path(values["checkout"]),
            rows=tuple(Row(**{**row, "files": tuple(row["files"])}) for row in values["rules"]),
            skipped=dict(values["skipped"]),
            changed=tuple(values["changed"]),
            edited=tuple(values["edited"]),
            failed=tuple(Failed(**failed) for failed in values["failed"]),
            left_out=tuple(values["left_out"]),
        )
