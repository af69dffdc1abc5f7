"""One supervised run of the miniature that is broken on purpose: its start, where it is, its end."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import psutil

from fluxguard import heartbeat
from fluxguard.drill.workshop import Workshop
from fluxguard.rundir import ATTEMPT_VARIABLE, RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.sensing import processes

ROOT = Path(__file__).resolve().parents[2]
TRAINER = "flux_train_network.py"
LAUNCHER = "accelerate.commands.launch"
STATES = ("*-state", ".*-state.partial")
LOOK = 0.02
WATCH = 0.5
FIRST, LAST = 2, 3
"""Faults come at the second step at the earliest, and three steps before the end at the latest."""
_BAR = re.compile(rb"steps:[^\r\n]*?(\d+)/\d+ \[")
_TAIL = 1 << 14

T = TypeVar("T")


class Missed(Exception):
    """Raised when a run is over before its fault could happen."""


@dataclass
class Play:
    """A run under way."""

    workshop: Workshop
    chance: Random
    steps: int
    """Optimizer steps of the whole run."""
    hardened: bool
    longest: float
    """Seconds after which nothing of it is waited for any more."""
    moment: str = "from the start"
    """When the fault came, in words."""
    together: int = 0
    """The most attempts that were seen to train at once."""
    began: float = field(default_factory=time.monotonic)
    supervisor: subprocess.Popen[bytes] = field(init=False)
    within: tuple[str, ...] = ()
    """A command that the supervisor is started by."""
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What has to be put right again for a run that goes on, and at the end."""
    mounted: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What has to be taken away at the end."""

    @property
    def run(self) -> RunDir:
        """Its run directory."""
        return RunDir(self.workshop.output_dir)

    @property
    def folder(self) -> Path:
        """All that is the run's own: images, caches, faults, output."""
        return self.workshop.output_dir.parent

    @property
    def said(self) -> Path:
        """What the supervisors say."""
        return self.folder / "supervisor.out"

    def supervise(self) -> None:
        """Start a supervisor, in a session of its own."""
        argv = [*self.within, sys.executable, "-m", "fluxguard", "supervise", str(self.workshop.train_sh)]
        argv += ["--limits", str(self.workshop.limits), *([] if self.hardened else ["--no-harden"])]
        with self.said.open("ab") as said:
            self.supervisor = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def ask(self, name: str, words: str = "") -> None:
        """Ask the miniature for a fault."""
        (self.workshop.faults / name).write_text(words)
        self.moment = f"{name} {words}".strip()

    def some_step(self) -> int:
        """Return a step somewhere in the run."""
        return self.chance.randint(FIRST, self.steps - LAST)

    def at_step(self, step: int | None = None) -> None:
        """Wait for a step (any one when none is said) and a moment more. Raises Missed."""
        wanted = step if step is not None else self.some_step()
        later = self.chance.uniform(0.0, 0.3)
        self.until(lambda: self.step() >= wanted)
        time.sleep(later)
        self.moment = f"step {wanted} and {later:.2f} s"

    def while_loading(self) -> None:
        """Wait for a moment before the first step of the first attempt. Raises Missed."""
        later = self.chance.uniform(0.5, 4.0)
        self.until(self.launcher)
        time.sleep(later)
        self.moment = f"{later:.2f} s after the start"

    def while_saving(self) -> None:
        """Wait until a state is being written, and a moment more. Raises Missed."""
        wanted, later = self.some_step(), self.chance.uniform(0.0, 0.05)
        self.until(lambda: self.step() >= wanted)
        there = self.states()
        self.until(lambda: self.states() - there)
        time.sleep(later)
        self.moment = f"{later * 1000:.0f} ms into a save behind step {wanted}"

    def until(self, look: Callable[[], T]) -> T:
        """Wait until `look` returns something true, and return that. Raises Missed when the run is over before."""
        while not (found := look()):
            if self.supervisor.poll() is not None or time.monotonic() > self.began + self.longest:
                raise Missed
            time.sleep(LOOK)
        return found

    def attempt(self) -> Attempt | None:
        """Return the newest attempt."""
        return attempts.last(self.run, ledger.read(self.run.ledger))

    def step(self) -> int:
        """Return the true step that the newest attempt has come to; 0 when it shows none."""
        attempt = self.attempt()
        if attempt is None:
            return 0
        if self.hardened:
            beat = heartbeat.read(heartbeat.path_for(self.run.beats(), 0))
            return beat.step if beat and beat.attempt == attempt.mark and beat.phase in ("step", "saving") else 0
        with contextlib.suppress(OSError), self.run.log.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(attempt.log_from, size - _TAIL))
            bars = _BAR.findall(log.read())
            return attempt.start_step + int(bars[-1]) if bars else 0
        return 0

    def states(self) -> set[str]:
        """Return the names of the states in the output folder, half written ones too."""
        return {path.name for pattern in STATES for path in self.workshop.output_dir.glob(pattern)}

    def living(self, attempt: Attempt | None = None) -> list[psutil.Process]:
        """Return the processes of the newest attempt that live, but for its keeper."""
        attempt = attempt or self.attempt()
        found = [identity.process() for identity in attempt.processes()] if attempt else []
        return [process for process in found if process is not None]

    def launcher(self) -> psutil.Process | None:
        """Return the launcher."""
        return next((p for p in self.living() if LAUNCHER in _line(p)), None)

    def trainers(self) -> list[psutil.Process]:
        """Return what trains, its workers left out."""
        training = {p.pid: p for p in self.living() if any(TRAINER in w for w in _line(p)) and LAUNCHER not in _line(p)}
        return [p for p in training.values() if _parent(p) not in training]

    def trainer(self) -> psutil.Process:
        """Return the process that trains. Raises Missed."""
        return self.until(self.trainers)[0]

    def worker(self) -> psutil.Process:
        """Return some DataLoader worker. Raises Missed."""

        def found() -> list[psutil.Process]:
            return [child for trainer in self.trainers() for child in _children(trainer)]

        return self.chance.choice(self.until(found))

    def keeper(self) -> psutil.Process:
        """Return the keeper of the newest attempt. Raises Missed."""

        def found() -> psutil.Process | None:
            attempt = self.attempt()
            return attempt.keeper.process() if attempt and attempt.keeper else None

        kept = self.until(found)
        assert kept is not None
        return kept

    def marks(self) -> list[str]:
        """Return the uuids of its attempts."""
        return [str(event.values["attempt"]) for event in ledger.read(self.run.ledger) if event.kind == "attempt"]

    def left(self) -> list[psutil.Process]:
        """Return whatever lives of any of its attempts."""
        found = [one.process() for mark in self.marks() for one in processes.of_attempt(mark, None)]
        return [process for process in found if process is not None]

    def end(self) -> None:
        """End whatever is left of it, and put right what was broken around it."""
        if hasattr(self, "supervisor"):
            self.supervisor.kill()
            self.supervisor.wait()
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.undo.close()
        self.mounted.close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count beside the block how many trainers live at once."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(WATCH):
                self.together = max(self.together, len(self._training()))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _training(self) -> set[str | None]:
        """Return the attempts of which something trains now, whoever started it."""
        output = str(self.workshop.output_dir)
        lines = ((process, _line(process)) for process in psutil.process_iter())
        mine = [process for process, line in lines if output in line and any(TRAINER in word for word in line)]
        return {_attempt(process) for process in mine if process.pid != self.supervisor.pid} - {None}


def _attempt(process: psutil.Process) -> str | None:
    """Return the attempt of a process, an empty text for one of no attempt, or None when it is just ending."""
    try:
        found = process.environ()
    except psutil.Error:
        return None
    return found.get(ATTEMPT_VARIABLE, "") if found else None


def _line(process: psutil.Process) -> list[str]:
    try:
        gone = process.status() == psutil.STATUS_ZOMBIE
        return [] if gone else process.cmdline()
    except psutil.Error:
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in process.children() if _line(child) == _line(process)]
    except psutil.Error:
        return []
