"""Measures the bars: prints a table and writes bench.json.

make bench                           everything (about ten minutes)
make bench BENCH=guard               the guard alone: costs, lateness, ends (about three minutes)
make bench BENCH="tables house"      any of: peers guard distributed scaling supervisor restarts states tables house
BENCH_CHECKOUT=DIR make bench        hardens copies of a checkout that the user has
BENCH_NVRX=DIR make bench            measures these sources of nvidia-resiliency-ext too (their src folder)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.bench import ends, guard, house, ranks, restarts, scaling, states, supervisor, tables
from tests.bench.measure import Figures, Row, say
from tests.bench.peers import others

GROUPS = ("peers", "guard", "distributed", "scaling", "supervisor", "restarts", "states", "tables", "house")


def measured(groups: list[str]) -> list[Row]:
    """Return the bars of some groups; without any, of all. Peers are measured for the guard alone."""
    told: dict[str, Figures] = others() if {"peers", "guard"} & set(groups) else {}
    parts: dict[str, list[Callable[[], list[Row]]]] = {
        "guard": [lambda: guard.rows(told), lambda: ends.rows(told)],
        "distributed": [ranks.rows],
        "scaling": [scaling.rows],
        "supervisor": [supervisor.rows],
        "restarts": [restarts.rows],
        "states": [states.rows],
        "tables": [tables.rows],
        "house": [house.rows],
    }
    rows = []
    for group in groups:
        for measure in parts.get(group, ()):
            say(f"measuring {group}")
            rows += measure()
    return rows


def line(row: Row) -> str:
    """Return a row of the table as it is printed."""
    sign = "<=" if row.better == "lower" else ">="
    verdict = "met" if row.met else "MISSED"
    return f"{row.name:45} {row.value:9.3f} {row.unit:11} {sign} {row.bar:<6g} {verdict:7} {row.peers}".rstrip() + "\n"


def main() -> None:
    """Measure, print, and write bench.json. Exits with 1 when a bar was missed and 2 when a group is unknown."""
    groups = sys.argv[1:] or list(GROUPS)
    if unknown := set(groups) - set(GROUPS):
        say(f"no such group: {', '.join(sorted(unknown))} (groups: {', '.join(GROUPS)})")
        sys.exit(2)
    rows = measured(groups)
    sys.stdout.writelines(map(line, rows))
    Path("bench.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
