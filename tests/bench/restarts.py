"""How fast a supervisor is: from the end or the limit of an attempt to its detection, and on to the next one."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from fluxguard.supervisor import ledger
from fluxguard.supervisor.ledger import Event
from tests.bench.measure import HANGS, Row
from tests.campaign.supervised import PATIENCE, Training

_TIMES = 5


def happened(training: Training, *kinds: str) -> list[Event]:
    """Return the events of some kinds so far."""
    return [event for event in ledger.read(training.run.ledger) if event.kind in kinds]


def wait_for(training: Training, kind: str, count: int) -> None:
    """Wait until an event has happened so often."""
    deadline = time.monotonic() + HANGS
    while len(happened(training, kind)) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def hang(training: Training) -> float:
    """Return how long after its limit a trainer that hangs was detected, in seconds."""
    training.fault("hang", 10)
    supervisor = training.supervise()
    supervisor.wait(HANGS)
    return float(happened(training, "incident")[0].values["detected_after_s"]) - PATIENCE


def crash(training: Training) -> float:
    """Return how long after its end a trainer that was killed was detected, in seconds."""
    training.step = 0.05
    supervisor = training.supervise()
    wait_for(training, "plan", 1)
    for pid in training.trainers():
        os.kill(pid, signal.SIGKILL)
    supervisor.wait(HANGS)
    return float(happened(training, "incident")[0].values["detected_after_s"])


def restart(training: Training) -> float:
    """Return the seconds from the first decision to the process of the attempt that follows it."""
    decided = happened(training, "decision")[0].at
    return next(event.at for event in happened(training, "spawned") if event.at >= decided) - decided


def adoption(training: Training) -> float:
    """Return the seconds from the start of a supervisor to its watching what another one has left, imports included."""
    training.step = 0.05
    first = training.supervise()
    wait_for(training, "plan", 1)
    first.kill()
    first.wait(HANGS)
    began = time.time()
    second = training.supervise()
    second.wait(HANGS)
    return happened(training, "adopted")[0].at - began


def rows() -> list[Row]:
    """Measure all of them."""
    hangs: list[float] = []
    crashes: list[float] = []
    adoptions: list[float] = []
    restarts: list[float] = []
    for _ in range(_TIMES):
        for measure, found in ((hang, hangs), (crash, crashes), (adoption, adoptions)):
            with tempfile.TemporaryDirectory() as name:
                training = Training(Path(name))
                try:
                    found.append(measure(training))
                    if measure is not adoption:
                        restarts.append(restart(training))
                finally:
                    training.clear()
    return [
        Row("hang detected after its limit", statistics.median(hangs), "s", 1.0),
        Row("killed trainer detected after", statistics.median(crashes), "s", 1.0),
        Row("decision to the next trainer process", statistics.median(restarts), "s", 2.0),
        Row("orphaned training adopted after", statistics.median(adoptions), "s", 5.0),
    ]
