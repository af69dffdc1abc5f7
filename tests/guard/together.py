"""Programs of a table that run several at once, in its order, and whose outcomes are asked for one by one."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxguard.rundir import RunDir
from tests import tree
from tests.conftest import FAULTS
from tests.warm import Starter


@dataclass(frozen=True)
class Program:
    """One program to run."""

    name: str
    """Of the test that asks for its outcome."""
    arguments: str
    """The file in tests/faults, and what it is given."""
    limits: Mapping[str, Any]
    """What its limits.json says."""
    hard: float
    """Seconds after which whatever lives of it is killed."""
    before: tuple[str, ...] = ()
    """What runs python."""
    torch: bool = False
    """Whether it starts with torch imported."""
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Ran:
    """A program that is over."""

    outcome: tree.Outcome
    said: str
    """Its output, its last words and the stacks."""
    run: RunDir


class Together:
    """A table of programs, so many of them at once."""

    def __init__(self, programs: Iterable[Program], folder: Path, warm: Callable[[], Starter], at_once: int) -> None:
        self._folder = folder
        self._warm = warm
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(at_once)
        self._ran: dict[str, Future[Ran]] = {
            program.name: self._pool.submit(self._run, number, program) for number, program in enumerate(programs)
        }

    def ran(self, name: str) -> Ran:
        """Return how a program came to its end; waits for that."""
        return self._ran[name].result()

    def close(self) -> None:
        """Kill what still runs."""
        self._over.set()
        self._pool.shutdown(cancel_futures=True)

    def _run(self, number: int, program: Program) -> Ran:
        folder = self._folder / str(number)
        folder.mkdir()
        run, environment = supervised(folder, program.limits)
        file, *arguments = program.arguments.split()
        python = () if program.torch else (*program.before, sys.executable)
        outcome = tree.run(
            [*python, str(FAULTS / file), *arguments],
            folder,
            {**os.environ, **environment, **(program.environment or {})},
            hard=program.hard,
            warm=self._warm() if program.torch else None,
            stop=self._over.is_set,
        )
        paths = (run.last_words(0), run.stacks(0))
        return Ran(outcome, outcome.output + "".join(path.read_text() for path in paths if path.exists()), run)


def supervised(folder: Path, limits: Mapping[str, Any]) -> tuple[RunDir, dict[str, str]]:
    """Make a run directory as a supervisor does, and return it with the environment of its trainer."""
    run = RunDir(folder / "out")
    run.create()
    beats = folder / "beats"
    beats.mkdir()
    run.run.write_text(json.dumps({"version": 1, "beats": str(beats)}))
    run.limits.write_text(json.dumps({"version": 1, **limits}))
    return run, {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_LIMITS": str(run.limits)}
