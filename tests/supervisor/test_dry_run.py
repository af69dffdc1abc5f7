"""Laws of a supervision that only tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger
from fluxguard.supervisor.dry_run import DryRun
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.telling import text
from fluxguard.supervisor.supervise import Outcome
from tests.supervisor.conftest import FakeRun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MakeRun = Callable[..., FakeRun]


def dry(run: FakeRun) -> DryRun:
    """Return a dry run of it."""
    real = run.supervision()
    return DryRun(run=real.run, ledger=real.ledger, trainee=real.trainee, chosen=real.chosen, clock=real.clock)


def would(run: FakeRun) -> list[Event]:
    """Return what it would have done."""
    return [event for event in ledger.read(run.run.ledger) if event.kind == "would"]


def test_a_training_that_goes_well_is_verified_as_always(fake: MakeRun) -> None:
    """Nothing would be done."""
    run = fake()
    assert dry(run).to_the_end().finished
    assert would(run) == []


def test_a_hang_is_explained_and_left_alone(fake: MakeRun) -> None:
    """The trainer lives; what would be done to it is said, once; only the user's own stop ends it."""
    run, outcomes = fake(), list[Outcome]()
    run.fault("hang", 10)
    supervision = dry(run)
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not would(run) and time.monotonic() < deadline:
        time.sleep(0.05)
    said = would(run)[0]
    attempt = attempts.last(run.run, supervision.ledger.events)
    assert attempt is not None
    pids = [one.pid for one in attempt.processes()]
    assert (said.values["action"], said.values["kill"], said.values["step"]) == ("restart", pids, 10)
    assert f"would end process {pids[0]} and start again" in str(text(said))
    time.sleep(1.0)
    assert [one.pid for one in attempt.processes()] == pids
    assert len(would(run)) == 1
    assert list(run.run.states.iterdir()) == []
    run.run.stop.write_text("{}")
    thread.join(20)
    assert attempt.processes() == []
    assert outcomes[0].reason.startswith("stopped on request")


def test_a_crash_is_explained_and_not_restarted(fake: MakeRun) -> None:
    """The run counts as stopped; a real supervision goes on from its state."""
    run = fake()
    run.fault("raise", 10)
    outcome = dry(run).to_the_end()
    assert not outcome.finished
    assert outcome.reason.startswith("dry run: The trainer stopped with an error")
    seen = status.read(run.run)
    assert seen is not None
    assert (seen.state, seen.attempts) == ("stopped", 1)
    assert [event.values["action"] for event in would(run)] == ["restart"]
    assert run.supervision().to_the_end().finished
    assert run.embodied() == [float(step) for step in range(40)]
