"""A supervisor killed at every point of its loop, and at random; `make campaign` does all, the tests a handful."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger
from fluxguard.supervisor.showing import status
from tests.campaign.supervised import KILLED, LONGEST, Count, Training

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif("not os.path.isdir('/proc/self')", reason="counts processes in /proc"),
]

LONG = "CAMPAIGN_KILLS" in os.environ
KILLS = 50 if LONG else 6
SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
STEPS = [float(step) for step in range(40)]

FEW = [
    ("ledger.attempt", "after", 1),
    ("keeper", "after", 1),
    ("SIGTERM", "after", 1),
    ("ledger.decision", "torn", 1),
    ("seal", "after", 2),
]
ALL = [
    *((f"ledger.{kind}", when, 1) for kind in ("job", "attempt", "spawned", "plan") for when in ("before", "after")),
    *(
        (f"ledger.{kind}", when, 1)
        for kind in ("ended", "incident", "decision", "finished")
        for when in ("before", "torn", "after")
    ),
    ("ledger.attempt", "torn", 1),
    ("ledger.attempt", "after", 2),
    ("ledger.spawned", "before", 2),
    ("spawn file", "before", 1),
    ("spawn file", "after", 1),
    ("keeper", "before", 1),
    ("keeper", "after", 2),
    ("look", "after", 1),
    ("look", "after", 4),
    ("evidence", "before", 1),
    ("evidence", "after", 1),
    ("ladder", "before", 1),
    ("SIGTERM", "before", 1),
    ("SIGKILL", "after", 1),
    ("ladder", "after", 1),
    ("report", "before", 1),
    ("report", "after", 1),
    ("judgement", "after", 1),
    ("seal", "before", 1),
    ("seal", "before", 2),
    ("choice", "after", 2),
    ("backoff", "before", 1),
    ("backoff", "after", 1),
    ("finish", "before", 1),
    ("finish", "after", 1),
]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """Give a training; whatever is left of it is ended."""
    made = Training(tmp_path)
    yield made
    made.clear()


def assert_ended_right(training: Training, steps: list[float], count: Count) -> None:
    """Finished and verified, each planned step once, one trainer at a time, nothing left."""
    seen = status.read(training.run)
    assert seen is not None, training.said()
    assert (seen.state, seen.weights["verified"]) == ("finished", True), training.said()
    assert training.embodied() == steps
    assert count.looks > 10
    assert count.most == 1
    assert training.trainers() == []
    last = attempts.last(training.run, ledger.read(training.run.ledger))
    assert last is not None
    assert last.processes() == []


@pytest.mark.parametrize(("point", "when", "nth"), [*FEW, *(one for one in ALL if LONG and one not in FEW)])
def test_a_supervisor_killed_anywhere_is_followed_by_one_that_ends_the_run_right(
    training: Training, point: str, when: str, nth: int
) -> None:
    """Whatever it had done by then: the next one finds out from the files, and no second trainer is started."""
    training.fault("hang", 10)
    training.fault("stubborn", 0)  # so that the ladder is climbed to its end
    with Count(training) as count:
        first = training.supervise(str(KILLED), point, when, str(nth))
        assert first.wait(LONGEST) == -signal.SIGKILL, training.said()
        second = training.supervise()
        assert second.wait(LONGEST) == 0, training.said()
    assert_ended_right(training, STEPS, count)


def test_a_supervisor_killed_again_and_again_at_random_ends_the_run_right(training: Training) -> None:
    """Sometimes the trainer is killed with it."""
    chance = random.Random(SEED)
    training.step, training.epochs = 0.12, 2 * KILLS
    kills = 0
    with Count(training) as count:
        while kills < KILLS:
            supervisor = training.supervise()
            try:
                supervisor.wait(chance.uniform(0.0, 3.0))
                break
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait(LONGEST)
                kills += 1
            if chance.random() < 0.15:
                for pid in training.trainers():
                    os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert training.supervise().wait(LONGEST * 2) == 0, training.said()
        assert time.monotonic() - began < LONGEST * 2
    assert kills == KILLS, f"it ended after {kills} kills (seed {SEED})"
    assert_ended_right(training, [float(step) for step in range(10 * training.epochs)], count)
