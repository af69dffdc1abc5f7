"""A run on the fake trainer: real processes, no model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fluxguard.clock import SystemClock
from fluxguard.launch import command, trainer
from fluxguard.launch import flags as launch_flags
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import ledger
from fluxguard.supervisor.learning import Chosen, named
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.supervise import Supervision
from fluxguard.supervisor.trainee import Trainee

FAKE = Path(__file__).parents[1] / "faults" / "fake" / "flux_train_network.py"

_QUICK: dict[str, Any] = {
    "phase": {name: {"patience": 1.5, "ceiling": 4.0} for name in ("load", "first step", "step", "saving")},
    "watch": {"grace": 0.5, "settle": 0.1, "backoff": 0.2},
    "max_restarts": 2,
}
QUICK = Chosen(Limits.from_mapping(_QUICK), named(_QUICK, "the tests"))


@dataclass
class FakeRun:
    """One output folder and what trains in it."""

    run: RunDir
    faults: Path
    flags: list[str]
    step: float = 0.02

    def supervision(self) -> Supervision:
        """Return a new supervision of it, as a supervisor that has just started has."""
        argv = [
            sys.executable, str(FAKE), "--output_dir", str(self.run.output_dir), "--output_name", "fake",
            "--save_state", *self.flags,
        ]  # fmt: skip
        known = trainer.find(argv, self.run.output_dir)
        flags = launch_flags.Flags.of(known)
        return Supervision(
            run=self.run,
            ledger=Ledger(self.run.ledger, SystemClock()),
            trainee=Trainee(
                argv=tuple(argv),
                resumed=lambda start, plan: command.resumed(
                    argv, known, flags, start, hardened=False, steps_per_epoch=plan.steps_per_epoch or None
                ),
                masked=lambda words: words,
                secrets=frozenset(),
                cwd=self.run.output_dir,
                env={"PATH": os.environ["PATH"], "FAKE_FAULTS": str(self.faults), "FAKE_STEP": str(self.step)},
                weights=self.run.output_dir / "fake.safetensors",
                hardened=False,
                accumulation=flags.gradient_accumulation_steps,
                own_cadence=False,
            ),
            chosen=QUICK,
            clock=SystemClock(),
        )

    def fault(self, name: str, step: int) -> None:
        """Let `name` happen once, at a step of whichever process comes there first."""
        (self.faults / name).write_text(str(step))

    def embodied(self) -> list[float]:
        """Return the steps that the final weights embody, in order."""
        from safetensors.numpy import load_file

        return [float(step) for step in load_file(self.run.output_dir / "fake.safetensors")["steps"]]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., FakeRun]]:
    """Return a maker of runs; whatever they leave behind is ended."""
    made: list[RunDir] = []

    def make(*flags: str, step: float = 0.02) -> FakeRun:
        run = RunDir(tmp_path / f"out{len(made)}")
        run.create()
        write_json(run.run, {"beats": str(tmp_path / "beats")})
        faults = tmp_path / f"faults{len(made)}"
        faults.mkdir()
        made.append(run)
        return FakeRun(run, faults, list(flags or ("--save_every_n_steps", "4")), step)

    yield make
    for run in made:
        marks = [str(event.values["attempt"]) for event in ledger.read(run.ledger) if event.kind == "attempt"]
        for identity in (one for mark in marks for one in processes.of_attempt(mark, None)):
            os.kill(identity.pid, 9)
