"""Laws of the whole tree: what an attempt has started is ended with it, however it left its parents."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.supervise import Supervision
from tests.supervisor.conftest import FAKE, FakeRun

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives orphans a new parent of ours"),
]

MakeRun = Callable[..., FakeRun]
LAUNCHER = FAKE.parents[1] / "launcher.py"
ALL = [float(step) for step in range(40)]
LONGEST = 40.0


def launched(run: FakeRun, family: Path) -> Supervision:
    """Return a supervision whose trainer is started by a launcher with a family."""
    made = run.supervision()
    trainee = made.trainee
    made.trainee = replace(
        trainee,
        argv=(trainee.argv[0], str(LAUNCHER), *trainee.argv[1:]),
        env={**trainee.env, "LAUNCHER_FAMILY": str(family)},
    )
    return made


def family_in(path: Path) -> dict[str, int]:
    """Wait for the numbers of a family."""
    deadline = time.monotonic() + LONGEST
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return dict(json.loads(path.read_text()))


def living(pids: dict[str, int]) -> list[str]:
    """Return who of a family lives."""
    return [name for name, pid in pids.items() if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def beside(supervision: Supervision) -> tuple[threading.Thread, list[Any]]:
    """Supervise in a thread; return it and where the outcome will be."""
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    return thread, outcomes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_that_dies_alone_takes_its_whole_family_with_it(fake: MakeRun, number: signal.Signals) -> None:
    """The orphaned trainer, the stopped, the one in its own session, the nameless one: all before the next attempt."""
    run = fake(step=0.1)
    supervision, left = launched(run, run.faults / "family"), []

    def look(event: Event) -> None:
        if event.kind == "attempt" and event.values["number"] == 2:
            left.append(living(family_in(run.faults / "family")))
            (run.faults / "family").unlink()

    supervision.ledger._subscribers.append(look)
    thread, outcomes = beside(supervision)
    pids = family_in(run.faults / "family")
    assert sorted(living(pids)) == sorted(pids)
    os.kill(pids["launcher"], number)
    thread.join(LONGEST)
    assert left == [[]]
    assert outcomes[0].finished
    assert run.embodied() == ALL
    last = attempts.last(run.run, supervision.ledger.events)
    assert last is not None
    assert last.processes() == []


def test_a_stop_ends_the_whole_family(fake: MakeRun) -> None:
    """Also those that no signal to the launcher would reach."""
    run = fake(step=0.2)
    supervision = launched(run, run.faults / "family")
    thread, outcomes = beside(supervision)
    pids = family_in(run.faults / "family")
    run.run.stop.write_text("{}")
    thread.join(LONGEST)
    assert living(pids) == []
    assert outcomes[0].reason.startswith("stopped on request")


def test_what_a_dead_keeper_and_a_dead_launcher_leave_is_found_by_the_mark_of_the_attempt(fake: MakeRun) -> None:
    """Only one that carries no mark and lost all its parents is out of sight then."""
    run = fake(step=0.2)
    supervision = launched(run, run.faults / "family")
    started = supervision._start(supervision._restart())
    assert isinstance(started, attempts.Attempt)
    assert started.keeper is not None
    pids = family_in(run.faults / "family")
    nameless = psutil.Process(pids.pop("nameless"))
    os.kill(started.keeper.pid, signal.SIGKILL)
    os.kill(pids.pop("launcher"), signal.SIGKILL)
    try:
        after = attempts.last(run.run, supervision.ledger.events)
        assert after is not None
        supervision._end(after)
        assert living(pids) == []
    finally:
        nameless.kill()
