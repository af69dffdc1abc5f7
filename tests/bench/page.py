"""Writes the figures of bench.json into docs/guard.md, between the marks that it holds for them."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

from tests.bench.measure import ROOT, Row

PAGE = ROOT / "docs" / "guard.md"
MARKS = re.compile(r"(<!-- figures: .*? -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def table(rows: list[Row], day: date) -> str:
    """Return the figures as a table of Markdown, dated."""
    lines = [
        f"Measured on {day.isoformat()}.",
        "",
        "| | measured | bar | others, in the same run |",
        "|---|---|---|---|",
    ]
    for row in rows:
        sign = "<=" if row.better == "lower" else ">="
        missed = "" if row.met else ", missed"
        lines.append(
            f"| {row.name} | {f'{row.value:.3g} {row.unit}'.strip()} | {sign} {row.bar:g}{missed} | {row.peers} |"
        )
    return "\n".join(line.replace("|  |", "| |") for line in lines) + "\n"


def main() -> None:
    """Write them."""
    rows = [Row(**values) for values in json.loads(Path("bench.json").read_text("utf-8"))]
    figures = table(rows, date.today())
    PAGE.write_text(MARKS.sub(lambda marks: marks[1] + figures + marks[2], PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
