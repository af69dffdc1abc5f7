"""Laws of waiting for other ranks, with real gloo processes: nobody waits for ever, and who is missing is named."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fluxguard.rundir import AGAIN, RunDir
from tests.conftest import FAULTS, Spawn, Spawned

LIMIT = 1.0
GRACE = 2.0
START = 25.0  # what three processes may take to import torch on a busy machine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "out")
    run.create()
    beats = tmp_path / "beats"
    beats.mkdir()
    run.run.write_text(json.dumps({"version": 1, "beats": str(beats)}))
    run.limits.write_text(json.dumps({"version": 1, "wait": {"barrier": LIMIT}}))
    return run


def ranks(spawn: Spawn, run: RunDir, fault: str, *options: str, world: int = 3) -> Spawned:
    """Start `world` ranks with a fault and wait until the healthy ones are at the barrier."""
    pytest.importorskip("accelerate")
    env = {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_LIMITS": str(run.limits)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = spawn(FAULTS / "barriers.py", str(world), fault, str(port), *options, env=env)
    started.until("rank 1 waiting", START)
    return started


def codes(started: Spawned, within: float = LIMIT + GRACE) -> str:
    """Return the line with the exit codes of the ranks, which must come in time."""
    # Beyond the promise, the starter of the ranks needs a moment of its own.
    started.until("codes [", within + 1)
    return started.output.partition("codes ")[2].partition("\n")[0]


def words(run: RunDir, rank: int) -> Any:
    return json.loads(run.last_words(rank).read_text())


@pytest.mark.parametrize("fault", ["none", "late", "destroyed"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_barrier_that_all_reach_in_time_is_passed(spawn: Spawn, run: RunDir, fault: str, world: int) -> None:
    """Late is not missing; and without a process group it is the accelerator's own business."""
    assert codes(ranks(spawn, run, fault, "begin", world=world), 10) == str([0] * world)


@pytest.mark.parametrize("fault", ["stuck", "dead"])
def test_a_rank_that_does_not_come_is_named_by_every_other(spawn: Spawn, run: RunDir, fault: str) -> None:
    """Of torch's monitored barrier only rank 0 learns who was missing."""
    left = "None" if fault == "stuck" else "-9"
    assert codes(ranks(spawn, run, fault, "begin")) == f"[{AGAIN}, {AGAIN}, {left}]"
    for rank in (0, 1):
        said = words(run, rank)
        assert (said["cause"], said["verdict"], said["limit"]) == ("barrier", "again", LIMIT)
        assert said["what"] == "barrier (rank 2 did not come)"
        assert LIMIT <= said["waited"] < LIMIT + 1
    assert not run.last_words(2).exists()


def test_a_rank_that_comes_too_late_ends_too(spawn: Spawn, run: RunDir) -> None:
    """The others are gone: it must not wait for them, nor go on without them."""
    assert codes(ranks(spawn, run, "after", "begin"), 5) == f"[{AGAIN}, {AGAIN}, {AGAIN}]"


def test_a_rank_whose_heartbeat_goes_on_is_late_not_missing(spawn: Spawn, run: RunDir) -> None:
    """It works for 2.5 times the limit, as a rank with more pictures to cache does."""
    assert codes(ranks(spawn, run, "beating", "begin"), 8) == "[0, 0, 0]"


@pytest.mark.parametrize("phase", ["sampling", "step"])
def test_a_rank_that_samples_may_be_silent_for_longer(spawn: Spawn, run: RunDir, phase: str) -> None:
    """Rank 0 samples and saves alone; the others wait at the next barrier as long as that phase may last."""
    started = ranks(spawn, run, "silent", "begin", phase)
    assert codes(started, 8) == ("[0, 0, 0]" if phase == "sampling" else f"[{AGAIN}, {AGAIN}, {AGAIN}]")


@pytest.mark.parametrize(("fault", "left"), [("stopped-host", "None"), ("gone-host", "-9")])
def test_a_store_that_is_stopped_or_gone_is_no_endless_wait(spawn: Spawn, run: RunDir, fault: str, left: str) -> None:
    """Rank 0 holds the store: its own stop or death must not hold the others."""
    assert codes(ranks(spawn, run, fault, "begin")) == f"[{left}, {AGAIN}, {AGAIN}]"
    assert "store" in words(run, 1)["what"]


def test_a_collective_that_not_all_join_names_itself_and_its_rank(spawn: Spawn, run: RunDir) -> None:
    """On every rank that waits in it."""
    assert codes(ranks(spawn, run, "collective", "begin")) == f"[{AGAIN}, {AGAIN}, None]"
    assert words(run, 1)["what"] == "all_reduce_network on rank 1 of 3"


def test_outside_of_a_trainer_it_raises_with_the_ranks(spawn: Spawn, run: RunDir) -> None:
    """Nothing ends a process that is no trainer."""
    started = ranks(spawn, run, "stuck")
    assert codes(started) == "[1, 1, None]"
    assert "rank 0 raised RanksMissing barrier (rank 2 did not come) did not finish within 1 s on" in started.output
    assert "limits.use(barrier=SECONDS) (2,)" in started.output
    assert "rank 1 raised RanksMissing" in started.output
