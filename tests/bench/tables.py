"""The two tables of programs: each way to hang or die ends or heals, each slow but healthy one is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

from tests.bench.measure import ROOT, Row, say

FAULTS = ("tests/guard/test_faults.py", "tests/guard/test_every_way.py")
HEALTHY = ("tests/guard/test_healthy*.py",)
ENOUGH_HEALTHY = 12
SHOWN = 5
PATIENCE = 900.0
"""Seconds that one table may take; each of its programs has a hard limit of its own."""
_MARK = "FLUXGUARD_BENCH"


@dataclass(frozen=True)
class Table:
    """What became of the programs of one table."""

    right: int
    wrong: tuple[str, ...]
    left: int
    """Processes that were still there afterwards."""


def run(*patterns: str) -> Table | None:
    """Run a table of programs; None when there is none, or it does not end."""
    files = [str(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    if not files:
        return None
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "integration", f"--junitxml={report}", *files]
        env = {**os.environ, _MARK: mark}
        try:
            subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            say(f"{' '.join(patterns)} did not end within {PATIENCE:g} s")
            return None
        cases = [case for case in ElementTree.parse(report).iter("testcase") if case.find("skipped") is None]
    wrong = tuple(str(case.get("name")) for case in cases if len(case))
    return Table(len(cases) - len(wrong), wrong, _left(mark))


def _left(mark: str) -> int:
    return sum(_has(process, mark) for process in psutil.process_iter())


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark
    except psutil.Error:
        return False


def rows() -> list[Row]:
    """Run both tables."""
    told = []
    faults = run(*FAULTS)
    if faults is not None:
        total = faults.right + len(faults.wrong)
        unit = f"of {total}"
        told.append(Row("fault programs ended or healed", faults.right, unit, total, "higher", _names(faults.wrong)))
        told.append(Row("processes left by them", faults.left, "", 0))
    healthy = run(*HEALTHY)
    if healthy is not None:
        total = healthy.right + len(healthy.wrong)
        told.append(Row("programs that are slow but healthy", total, "", ENOUGH_HEALTHY, "higher"))
        told.append(Row("of these killed", len(healthy.wrong), "", 0, peers=_names(healthy.wrong)))
    return told


def _names(wrong: Sequence[str]) -> str:
    shown = [name.removeprefix("test_") for name in wrong[:SHOWN]]
    rest = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return f"wrong: {', '.join(shown)}{rest}" if wrong else ""
