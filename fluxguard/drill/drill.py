"""A whole drill: an undisturbed training for comparison, then one that is broken on purpose and has to end the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.clock import Clock
from fluxguard.drill import workshop as workshops
from fluxguard.drill.faults import Fault
from fluxguard.drill.workshop import EPOCHS, IMAGES, STEPS, Workshop
from fluxguard.errors import FluxguardError
from fluxguard.heartbeat import Beat
from fluxguard.launch import trainsh
from fluxguard.rundir import RunDir
from fluxguard.supervisor.showing import status as statuses
from fluxguard.supervisor.showing.status import Status

_LOOK = 0.05
_LONGEST = 240.0


class DrillFailed(FluxguardError):
    """Raised when a drill did not come to its end."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a drill ended."""

    faults: tuple[Fault, ...]
    status: Status
    identical: bool
    """Whether the final weights equal those of the undisturbed training, bit for bit."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether each fault was met once, in place or by another attempt, and the end is verified and the same."""
        seen = self.status
        in_place = sum(fault.heals for fault in self.faults)
        return (
            seen.state == "finished"
            and seen.applied_steps == seen.planned_steps == STEPS
            and len(seen.healed) == in_place
            and len(seen.incidents) == len(self.faults) - in_place
            and self.identical
        )


def run(folder: Path, faults: Sequence[Fault], clock: Clock, tell: Callable[[str], None]) -> Result:
    """Hold a drill in `folder`. Raises DrillFailed when it does not come to an end."""
    began = clock.monotonic()
    tell("training once undisturbed and unhardened, to compare with")
    # Making the caches draws random numbers, so the weights to compare with come from a second training.
    train(workshops.prepare(folder, hardened=False, name="caches", epochs=1))
    reference = workshops.prepare(folder, hardened=False, name="undisturbed")
    train(reference)
    workshop = workshops.prepare(folder)
    tell(f"training again, hardened and supervised, with {len(faults)} fault{'s' * (len(faults) > 1)} to come")
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "fluxguard", "supervise", str(workshop.train_sh), "--limits", str(workshop.limits)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _inject(workshop, faults, supervisor, clock, tell)
        _, said = supervisor.communicate(timeout=_LONGEST)
    finally:
        supervisor.kill()
    seen = statuses.read(RunDir(workshop.output_dir))
    if seen is None:
        raise DrillFailed(f"the supervisor did not start: {said.strip()}")
    return Result(
        faults=tuple(faults),
        status=seen,
        identical=_same_tensors(_weights(reference), _weights(workshop)),
        seconds=clock.monotonic() - began,
    )


def train(workshop: Workshop) -> None:
    """Train without any supervision."""
    script = trainsh.parse(workshop.train_sh, os.environ)
    log = workshop.output_dir / "train.log"
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                script.argv,
                cwd=script.cwd,
                env={**os.environ, **script.env},
                stdout=file,
                stderr=file,
                timeout=_LONGEST,
            )
        except subprocess.TimeoutExpired:
            raise DrillFailed(f"the undisturbed training did not end; see {log}") from None
    if done.returncode != 0:
        raise DrillFailed(f"the undisturbed training failed; see {log}")


def _inject(
    workshop: Workshop,
    faults: Sequence[Fault],
    supervisor: subprocess.Popen[str],
    clock: Clock,
    tell: Callable[[str], None],
) -> None:
    """Break the training once for each fault, in the middle of one epoch after the other."""
    run = RunDir(workshop.output_dir)
    deadline = clock.monotonic() + _LONGEST
    for number, fault in enumerate(faults):
        step = number % EPOCHS * IMAGES + IMAGES // 2 + 1
        while supervisor.poll() is None and clock.monotonic() < deadline:
            beat = _beat(run)
            if beat is not None and beat.step >= step and beat.phase == "step" and fault.inject(beat, workshop):
                tell(f"step {beat.step}: {fault.words}")
                break
            clock.sleep(_LOOK)
        while supervisor.poll() is None and clock.monotonic() < deadline and len(_met(run)) <= number:
            clock.sleep(_LOOK)
        for words in _met(run)[number:]:
            tell(words)


def _beat(run: RunDir) -> Beat | None:
    return heartbeat.read(heartbeat.path_for(run.beats(), 0)) if run.run.exists() else None


def _met(run: RunDir) -> list[str]:
    """Return in words what was done about the faults so far."""
    seen = statuses.read(run)
    if seen is None:
        return []
    incidents = [f"explained: {incident['words']}" for incident in seen.incidents]
    return [*incidents, *(str(heal["words"]) for heal in seen.healed)]


def _weights(workshop: Workshop) -> Path:
    return workshop.output_dir / f"{workshop.output_dir.name}.safetensors"


def _same_tensors(one: Path, other: Path) -> bool:
    """Return whether two weights files hold the same tensors, bit for bit; their metadata hold times and may differ."""
    try:
        return tensors(one) == tensors(other)
    except OSError:
        return False


def tensors(path: Path) -> dict[str, object]:
    """Return type, shape and bytes of every tensor in a weights file. Raises OSError."""
    from safetensors import deserialize

    found = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {name: (values["dtype"], values["shape"], bytes(values["data"])) for name, values in found}
