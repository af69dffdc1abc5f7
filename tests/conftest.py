"""Fixtures for every test: real processes that never outlive their test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import workers
from tests.warm import TAG, Starter, WarmProcess

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests" / "faults"

HARD_LIMIT = 60.0
POLL = 0.02
_MARKERS = (  # here and not in pyproject.toml, which is out of sight when pytest is given a checkout elsewhere
    "integration: starts real processes (each with a hard outer limit)",
    "gpu: needs an NVIDIA card",
    "upstream: needs --sd-scripts PATH, a checkout the user has",
)
_OURS = ("FLUXGUARD_RUN", "FLUXGUARD_ATTEMPT", "FLUXGUARD_LIMITS", "RANK", "LOCAL_RANK", "WORLD_SIZE")


@dataclass
class Spawned:
    """A program started for a test, with all it starts."""

    process: subprocess.Popen[str] | WarmProcess
    started: float
    log: Path
    known: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has written so far to standard output and error."""
        return self.log.read_text(errors="replace")

    def look(self) -> None:
        """Remember the children it has now, so that they are found when they are orphans."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                self.known.setdefault(child.pid, child)

    def until(self, text: str, within: float = HARD_LIMIT) -> float:
        """Wait until it has written `text` and return when that was seen."""
        return self.when(lambda: text in self.output, within)

    def when(self, holds: Callable[[], bool], within: float = HARD_LIMIT) -> float:
        """Wait until something holds and return when that was seen. Fails when the program ends before."""
        deadline = time.monotonic() + within
        while not holds():
            self.look()
            ended = self.process.poll() is not None
            if (ended and not holds()) or time.monotonic() > deadline:
                pytest.fail(f"{'ended' if ended else 'ran too long'} without it:\n{self.output}")
            time.sleep(POLL)
        return time.monotonic()

    def ends(self, within: float = HARD_LIMIT) -> int:
        """Wait for its end and return its exit code (a signal as a negative number)."""
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            self.look()
            if time.monotonic() > deadline:
                pytest.fail(f"still alive after {within:g} s:\n{self.output}")
            time.sleep(POLL)
        assert self.process.returncode is not None
        return self.process.returncode

    def living(self) -> list[int]:
        """Return the children it ever had that still live (zombies do not)."""
        return [pid for pid, child in self.known.items() if _lives(child)]

    def kill(self) -> None:
        """Kill it and everything it started, stopped or orphaned too."""
        self.look()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for child in self.known.values():
            if _lives(child):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self.process.wait(HARD_LIMIT)


def pytest_configure(config: pytest.Config) -> None:
    """Register our markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests of real processes more time, and let workers begin with what takes long."""
    for item in items:
        own = item.get_closest_marker("timeout")
        if item.get_closest_marker("integration") and (own is None or own.args[0] < workers.PATIENCE):
            item.add_marker(pytest.mark.timeout(workers.PATIENCE), append=False)
    if workers.is_one(config):
        items[:] = workers.ordered(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let workers share the tests file by file."""
    return workers.scheduler(config, log)


def _imports_torch(program: str | os.PathLike[str]) -> bool:
    path = Path(program)
    return path.parent == FAULTS and "\nimport torch\n" in path.read_text()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


Spawn = Callable[..., Spawned]
Warm = Callable[[], Starter]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Give the one process that has imported torch, started when it is first asked for."""
    lock = threading.Lock()
    started: list[Starter] = []

    def get() -> Starter:
        with lock:
            if not started:
                started.append(Starter())
        return started[0]

    yield get
    for starter in started:
        starter.close()


@pytest.fixture
def spawn(tmp_path: Path, warm: Warm) -> Iterator[Spawn]:
    """Start python programs, each in its own session; whatever is left of them at the end of the test is killed.

    A fault program that imports torch, or one for which `torch` is said, finds it imported where processes can be
    forked: that saves most of its time.
    """
    all_spawned: list[Spawned] = []

    def start(
        *command: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        python: Sequence[str] = (sys.executable,),
        torch: bool | None = None,
    ) -> Spawned:
        clean = {name: value for name, value in os.environ.items() if name not in _OURS}
        clean |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **(env or {})}
        log = tmp_path / f"spawned.{len(all_spawned)}.log"
        process: subprocess.Popen[str] | WarmProcess
        if sys.platform.startswith("linux") and (_imports_torch(command[0]) if torch is None else torch):
            log.touch()
            arguments = [str(part) for part in command]
            process = warm().start(arguments, {TAG: uuid.uuid4().hex, **clean}, cwd or tmp_path, log)
            all_spawned.append(Spawned(process, time.monotonic(), log))
            return all_spawned[-1]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*python, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=clean,
                cwd=cwd or tmp_path,
                start_new_session=True,
                text=True,
            )
        all_spawned.append(Spawned(process, time.monotonic(), log))
        return all_spawned[-1]

    yield start
    for spawned in all_spawned:
        spawned.kill()
