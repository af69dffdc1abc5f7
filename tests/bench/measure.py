"""How a figure is taken, and what one line of the table holds."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fluxguard.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"
REPEATS = 15
HANGS = 90.0
"""Seconds after which a program of the bench itself is given up."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where a supervisor has heartbeats written: in memory, where the platform has a place for that."""
ATTEMPT = "6f1e7c1a-0000-4000-8000-0000000be7c4"

Figures = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One bar."""

    name: str
    value: float
    unit: str
    bar: float
    better: str = "lower"
    peers: str = ""
    """What others take for the same in this run, with their names."""

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the bar; a figure that could not be taken is on the wrong one."""
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar


def median_us(act: Callable[[], object], inner: int) -> float:
    """Return the median cost of one call in microseconds, over REPEATS medians of `inner` calls."""
    return statistics.median(statistics.median(_costs(act, inner)) for _ in range(REPEATS)) / 1000


def paired_us(plain: Callable[[], object], guarded: Callable[[], object], inner: int) -> float:
    """Return by how many microseconds `guarded` is dearer than `plain`: the median over pairs of calls in turn."""
    differences = []
    for number in range(REPEATS * inner):
        first, second = (plain, guarded) if number % 2 else (guarded, plain)
        (one,), (other,) = _costs(first, 1), _costs(second, 1)
        differences.append(other - one if number % 2 else one - other)
    return statistics.median(differences) / 1000


def _costs(act: Callable[[], object], times: int) -> list[int]:
    costs = []
    for _ in range(times):
        began = time.perf_counter_ns()
        act()
        costs.append(time.perf_counter_ns() - began)
    return costs


def supervised(folder: Path, waits: Mapping[str, float] = MappingProxyType({}), **more: object) -> dict[str, str]:
    """Return the environment of a trainer with a run directory in `folder`, as a supervisor sets it.

    `waits` are its limits in seconds by name, `more` is what else its limits.json says."""
    run = RunDir(folder / "out")
    run.create()
    beats = folder / "beats"
    beats.mkdir()
    run.run.write_text(json.dumps({"version": 1, "beats": str(beats)}))
    run.limits.write_text(json.dumps({"version": 1, "wait": dict(waits), **more}))
    return {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_ATTEMPT": ATTEMPT, "FLUXGUARD_LIMITS": str(run.limits)}


def environment(more: dict[str, str], *paths: Path) -> dict[str, str]:
    """Return the environment of a program of the bench: this checkout and `paths` are importable."""
    path = os.pathsep.join(map(str, (ROOT, *paths)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **more}


def figures_of(module: str, *words: str, env: dict[str, str], cwd: Path | None = None) -> Figures:
    """Run a program of the bench and return the figures it prints.

    Raises CalledProcessError when it fails and TimeoutExpired when it hangs.
    """
    command = [sys.executable, "-m", f"tests.bench.{module}", *words]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=HANGS)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def own_figures(module: str, env: dict[str, str]) -> Figures:
    """Return the figures of a program that measures the guard; what it could not measure is no number, said aloud."""
    try:
        return figures_of(module, env=env)
    except subprocess.CalledProcessError as error:
        say(f"{module} failed: {(error.stderr or '').strip()}")
    except subprocess.TimeoutExpired:
        say(f"{module} did not end within {HANGS:g} s")
    return defaultdict(lambda: math.nan)


def say(words: str) -> None:
    """Tell on standard error what is being done."""
    sys.stderr.write(f"bench: {words}\n")


def tell(figures: dict[str, Any]) -> None:
    """Print the figures of a program of the bench."""
    sys.stdout.write(json.dumps(figures) + "\n")


def named(figures: Sequence[tuple[str, float | None]], unit: str = "") -> str:
    """Return the figures of several peers in one line; those that have none are left out."""
    return ", ".join(f"{peer} {_short(value)}{unit}" for peer, value in figures if value is not None)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
