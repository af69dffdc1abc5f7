"""A training of the fake trainer under the real command line, and a watcher that counts its trainers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger
from fluxguard.supervisor.sensing import processes
from tests.supervisor.conftest import FAKE

KILLED = Path(__file__).parents[1] / "faults" / "killed_supervisor.py"
ROOT = Path(__file__).parents[2]
LONGEST = 90.0
PATIENCE = 2.0
"""Seconds that its steps may be silent."""
_LIMITS = """max_restarts = 4
[watch]
grace = 0.4
settle = 0.1
backoff = 0.2
[phase]
load = {patience = 5.0, ceiling = 8.0}
"first step" = {patience = 2.0, ceiling = 4.0}
step = {patience = 2.0, ceiling = 4.0}
saving = {patience = 2.0, ceiling = 4.0}
"""


@dataclass
class Training:
    """One output folder, what trains in it, and who supervises it."""

    folder: Path
    step: float = 0.02
    epochs: int = 4
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "limits.toml").write_text(_LIMITS)
        self.out.mkdir()

    @property
    def out(self) -> Path:
        """The output folder."""
        return self.folder / "out"

    @property
    def run(self) -> RunDir:
        """Its run directory."""
        return RunDir(self.out)

    def words(self) -> list[str]:
        """Return the arguments of fluxguard that supervise it."""
        return [
            "supervise", "--output-dir", str(self.out), "--python", sys.executable, "--no-harden",
            "--limits", str(self.folder / "limits.toml"), "--",
            "python", str(FAKE), "--output_name", "fake", "--save_state", "--save_every_n_steps", "4",
            "--max_train_epochs", str(self.epochs),
        ]  # fmt: skip

    def supervise(self, *head: str) -> subprocess.Popen[bytes]:
        """Start a supervisor; `head` is what stands in the place of `-m fluxguard`."""
        env = {**os.environ, "FAKE_STEP": str(self.step), "FAKE_FAULTS": str(self.folder), "PYTHONPATH": str(ROOT)}
        with (self.folder / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *(head or ("-m", "fluxguard")), *self.words()],
                env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def said(self) -> str:
        """Return what the supervisors said."""
        return (self.folder / "supervisor.log").read_text()

    def fault(self, name: str, step: int) -> None:
        """Let `name` happen once, at a step of whichever process comes there first."""
        (self.folder / name).write_text(str(step))

    def embodied(self) -> list[float]:
        """Return the steps that the final weights embody, in order."""
        from safetensors.numpy import load_file

        return [float(step) for step in load_file(self.out / "fake.safetensors")["steps"]]

    def trainers(self) -> list[int]:
        """Return the processes that train into the folder now."""
        wanted, found = (str(FAKE).encode(), str(self.out).encode()), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted[0] in words and wanted[1] in words and b"-m" not in words and b"supervise" not in words:
                found.append(int(pid))
        return found

    def clear(self) -> None:
        """End whatever is left."""
        for process in self.started:
            process.kill()
            process.wait(LONGEST)
        marks = [str(event.values["attempt"]) for event in ledger.read(self.run.ledger) if event.kind == "attempt"]
        for identity in (one for mark in marks for one in processes.of_attempt(mark, None)):
            if one := identity.process():
                one.kill()


class Count(threading.Thread):
    """Counts the trainers of a training again and again."""

    def __init__(self, training: Training) -> None:
        super().__init__(daemon=True)
        self._training = training
        self._done = threading.Event()
        self.most = 0
        self.looks = 0

    def run(self) -> None:
        """Look until it is left."""
        while not self._done.wait(0.03):
            self.most = max(self.most, len(self._training.trainers()))
            self.looks += 1

    def __enter__(self) -> Count:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
