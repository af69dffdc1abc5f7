"""Slow but healthy programs, for real: none of them is ended, none has an incident."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.scenarios.stage import LIMITS, LONGEST, PATIENCE, STEPS, Stage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(4 * LONGEST * PATIENCE)]

SetStage = Callable[..., Stage]
SLOW = ("caches_slowly", "takes_long_for_the_first", "saves_slowly", "samples_slowly", "logs_without_end")


def unharmed(stage: Stage) -> None:
    """Assert that one attempt trained every step once."""
    seen = stage.status
    assert (seen.state, seen.attempts, seen.incidents) == ("finished", 1, []), stage.said
    assert stage.embodied() == [float(step) for step in range(STEPS)]


@pytest.mark.parametrize("scene", SLOW)
def test_what_is_slow_is_let_be(stage: SetStage, scene: str) -> None:
    """Caching, a first step, saving, sampling, a log that says much: each takes its time."""
    slow = stage(scene, once=False)
    assert slow.to_the_end() == 0, slow.said
    unharmed(slow)


def test_a_suspend_of_everything_counts_for_no_limit(stage: SetStage) -> None:
    """Longer than any limit, the supervisor included, as when a lid is closed."""
    asleep = stage()
    supervisor = asleep.supervise()
    asleep.until(lambda: asleep.states())
    attempt = next(event for event in asleep.events if event.kind == "spawned")
    keeper = psutil.Process(int(attempt.values["keeper"]["pid"]))
    everything = [psutil.Process(supervisor.pid), keeper, *asleep.living()]
    for process in everything:
        process.send_signal(signal.SIGSTOP)
    time.sleep(LIMITS["phase"]["step"]["ceiling"] + 2)  # type: ignore[index]
    for process in reversed(everything):
        process.send_signal(signal.SIGCONT)
    assert supervisor.wait(LONGEST * PATIENCE) == 0, asleep.said
    unharmed(asleep)


def test_a_trainer_that_a_person_stops_for_a_moment_goes_on(stage: SetStage) -> None:
    """Shorter than the patience: the same attempt finishes."""
    paused = stage()
    supervisor = paused.supervise()
    paused.until(lambda: paused.states())
    trainer = next(process for process in paused.living() if "scenes" in " ".join(process.cmdline()))
    os.kill(trainer.pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(trainer.pid, signal.SIGCONT)
    assert supervisor.wait(LONGEST * PATIENCE) == 0, paused.said
    unharmed(paused)
