"""The table of docs/what-goes-wrong.md, which promises how each group of what users meet ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-goes-wrong.md"
COLUMNS = ["group", "what you see", "ends", "cause", "what fluxguard does"]
NO_CAUSE = "-"


@dataclass(frozen=True)
class Row:
    """One group."""

    group: str
    ends: str
    """finished, stopped or refused."""
    cause: str
    """That of the incident; `-` when there is none."""


def read(text: str) -> dict[str, Row]:
    """Return the rows by group. Raises ValueError without such a table."""
    lines = [_cells(line) for line in text.splitlines()]
    start = lines.index(COLUMNS) + 2
    rows = {}
    for cells in lines[start:]:
        if len(cells) != len(COLUMNS):
            break
        group, _, ends, cause, _ = cells
        rows[group] = Row(group, ends, cause)
    return rows


def _cells(line: str) -> list[str]:
    line = line.strip()
    return [cell.strip().strip("`") for cell in line.strip("|").split("|")] if line.startswith("|") else []
