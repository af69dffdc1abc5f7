"""A stage on which a tiny trainer plays what users meet, under a real `fluxguard supervise`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.status import Status

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests" / "faults" / "scenes" / "flux_train_network.py"
STEPS = 30
LONGEST = 60.0
LOOK = 0.02
PATIENCE = float(os.environ.get("CAMPAIGN_PATIENCE", "1"))
"""By which the limits are multiplied on a machine that is busy with other things."""
PHASES = ("load", "latent cache", "first step", "step", "saving", "sampling")
LIMITS = {
    "phase": {name: {"patience": 3.0 * PATIENCE, "ceiling": 5.0 * PATIENCE} for name in PHASES},
    "watch": {"grace": 0.5, "settle": 0.1, "backoff": 0.2, "memory": 1.0},
    "max_restarts": 2,
}


@dataclass
class Stage:
    """One run and all that belongs to it."""

    folder: Path
    scene: str = ""
    once: bool = True
    """Whether it goes wrong in one process only."""
    flags: tuple[str, ...] = ()
    supervisors: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "once").touch()
        (self.folder / "limits.json").write_text(json.dumps(LIMITS))

    @property
    def run(self) -> RunDir:
        """Its run directory."""
        return RunDir(self.folder / "out")

    @property
    def said(self) -> str:
        """All that the supervisors said."""
        return (self.folder / "said").read_text(errors="replace")

    @property
    def events(self) -> list[Event]:
        """What happened so far."""
        return ledger.read(self.run.ledger)

    @property
    def status(self) -> Status:
        """How it is."""
        seen = status.read(self.run)
        assert seen is not None, self.said
        return seen

    def supervise(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a supervisor, in a session of its own."""
        trainer = [sys.executable, str(TRAINER), "--output_dir", str(self.run.output_dir), "--output_name", "lora"]
        limits = ["--limits", str(self.folder / "limits.json")]
        argv = [sys.executable, "-m", "fluxguard", "supervise", "--no-harden", *limits, *more, "--"]
        argv += [*trainer, "--save_state", *self.flags]
        env = {**os.environ, "SCENE": self.scene, **({"SCENE_ONCE": str(self.folder / "once")} if self.once else {})}
        with (self.folder / "said").open("ab") as said:
            self.supervisors.append(
                subprocess.Popen(argv, cwd=ROOT, env=env, stdout=said, stderr=said, start_new_session=True)
            )
        return self.supervisors[-1]

    def to_the_end(self) -> int:
        """Supervise until the supervisor ends by itself; return its exit code."""
        return self.supervise().wait(LONGEST * PATIENCE)

    def stop(self) -> None:
        """Stop it as a person does."""
        argv = [sys.executable, "-m", "fluxguard", "stop", str(self.run.output_dir)]
        with (self.folder / "said").open("ab") as said:
            subprocess.run(argv, cwd=ROOT, stdout=said, stderr=said, timeout=LONGEST, check=True)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + LONGEST * PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(LOOK)

    def living(self) -> list[psutil.Process]:
        """Return what lives of its attempts."""
        marks = [str(event.values["attempt"]) for event in self.events if event.kind == "attempt"]
        found = [one.process() for mark in marks for one in processes.of_attempt(mark, None)]
        return [process for process in found if process is not None]

    def states(self) -> Sequence[Path]:
        """Return the states that were saved and not sealed yet, oldest first."""
        return sorted(self.run.output_dir.glob("*-state"), key=lambda path: path.stat().st_mtime)

    def embodied(self) -> list[float]:
        """Return the steps that the final weights embody."""
        from safetensors.numpy import load_file

        return [float(step) for step in load_file(self.run.output_dir / "lora.safetensors")["steps"]]

    def close(self) -> None:
        """End whatever is left."""
        for supervisor in self.supervisors:
            supervisor.kill()
            supervisor.wait()
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.run.beats(), ignore_errors=True)
