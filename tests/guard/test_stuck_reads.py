"""Laws of stuck reads in real processes: each is made again once, wherever it is made, and then given up."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from fluxguard.rundir import AGAIN, RunDir
from tests.conftest import FAULTS, Spawn, Spawned

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs"),
]

LIMIT = 1.0
TWICE = 2 * LIMIT + 2.0
"""Two limits, a tick of each, and the end."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with small limits."""
    run = RunDir(tmp_path / "out")
    run.create()
    run.run.write_text(json.dumps({"version": 1, "beats": str(tmp_path)}))
    run.limits.write_text(json.dumps({"version": 1, "wait": {"read": LIMIT, "batch": 20, "first_batch": 30}}))
    return run


def start(spawn: Spawn, run: RunDir, *words: str, fault: str = "stuck_read.py") -> Spawned:
    """Start a fault program in that run."""
    env = {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_LIMITS": str(run.limits), "PYTHONWARNINGS": "ignore"}
    return spawn(FAULTS / fault, *words, env=env)


def ends(fault: Spawned, within: float) -> int:
    """Wait for the end of a program, in time, and return its exit code."""
    since = fault.until("waiting")
    code = fault.ends()
    assert time.monotonic() - since < within, fault.output
    return code


@pytest.mark.parametrize("place", ["main", "thread", "nosignals", "swallow"])
def test_a_read_that_is_stuck_once_is_healed(spawn: Spawn, run: RunDir, place: str) -> None:
    """The trainer goes on with what it has read, and the run knows."""
    fault = start(spawn, run, "once", place, "begin")
    assert fault.ends() == 0, fault.output
    assert "read 100 calls 2" in fault.output
    assert "no new byte came for 1 s; it was opened again, and read" in fault.output
    told = json.loads(run.healed(0).read_text())
    assert (told["cause"], told["identical"]) == ("file read", True)
    assert told["file"].endswith("image.npz")


@pytest.mark.parametrize("place", ["main", "thread"])
def test_a_read_of_a_page_is_healed_as_well(spawn: Spawn, run: RunDir, place: str) -> None:
    """It ends no process, so it needs no trainer."""
    fault = start(spawn, run, "once", place)
    assert fault.ends() == 0, fault.output
    assert "read 100 calls 2" in fault.output


@pytest.mark.parametrize("how", ["worker", "spawn"])
def test_a_read_in_a_worker_is_healed_there(spawn: Spawn, run: RunDir, how: str) -> None:
    """The main thread of a worker has signals; the trainer sees a batch that came late."""
    fault = start(spawn, run, "once", how, "begin")
    assert fault.ends() == 0, fault.output
    assert "read [1, 1]" in fault.output
    assert "it was opened again, and read" in fault.output


@pytest.mark.parametrize("place", ["main", "swallow"])
def test_a_read_that_is_stuck_twice_raises_on_the_main_thread(spawn: Spawn, run: RunDir, place: str) -> None:
    """In a trainer too: the trainer may know better, and without a handler it ends."""
    fault = start(spawn, run, "twice", place, "begin")
    assert ends(fault, TWICE) == 1
    assert "DeadlineExceeded: reading image.npz did not finish within 1 s" in fault.output


@pytest.mark.parametrize("place", ["thread", "nosignals"])
def test_a_read_that_is_stuck_twice_elsewhere_ends_a_trainer(spawn: Spawn, run: RunDir, place: str) -> None:
    """With the file named in its last words."""
    fault = start(spawn, run, "twice", place, "begin")
    assert ends(fault, TWICE) == AGAIN
    words = json.loads(run.last_words(0).read_text())
    assert (words["cause"], words["file"]) == ("file read", "image.npz")


@pytest.mark.parametrize("place", ["thread", "nosignals"])
def test_what_is_left_behind_does_not_hold_the_end(spawn: Spawn, run: RunDir, place: str) -> None:
    """Outside of a trainer the wait raises, and the interpreter ends although two threads are stuck."""
    fault = start(spawn, run, "twice", place)
    assert ends(fault, TWICE) == (0 if place == "thread" else 1)
    assert "DeadlineExceeded: reading image.npz did not finish within 1 s" in fault.output
    assert "2 threads stuck" in fault.output


def test_a_stuck_block_on_another_thread_ends_a_trainer(spawn: Spawn, run: RunDir) -> None:
    """Nothing else leaves it."""
    fault = start(spawn, run, "once", "thread", "block", "begin")
    assert ends(fault, LIMIT + 2.0) == AGAIN
    assert json.loads(run.last_words(0).read_text())["file"] == "image.npz"


def test_a_stuck_block_on_another_thread_of_a_page_has_warned(spawn: Spawn, run: RunDir) -> None:
    """It has no limit, which is said when it begins."""
    fault = start(spawn, run, "once", "thread", "block")
    fault.until("reading image.npz has no limit: nothing interrupts a block on this thread")


@pytest.mark.parametrize("place", [("thread",), ("nosignals",), ()], ids=["thread", "nosignals", "main"])
def test_a_forked_child_reads(spawn: Spawn, run: RunDir, place: tuple[str, ...]) -> None:
    """The reader of its parent does not exist there; it gets one of its own."""
    fault = start(spawn, run, "none", "fork", *place, "begin")
    assert fault.ends() == 0, fault.output
    assert "child read 100" in fault.output
    assert "child ended 0" in fault.output


@pytest.mark.parametrize("thread", ["main", "thread"])
def test_a_slow_read_of_a_page_is_never_given_up(spawn: Spawn, run: RunDir, thread: str) -> None:
    """A byte each 0.2 s for four times the limit, on a thread of ours as well: nothing is healed, nothing is said."""
    fault = start(spawn, run, str(4 * LIMIT), thread, fault="slow_reader.py")
    assert fault.ends() == 0
    assert int(fault.output.split("read ")[1].split()[0]) > 2 * LIMIT / 0.2  # four times, on a free machine
    assert "opened again" not in fault.output


def test_a_foreign_alarm_rings_in_the_middle_of_a_read(spawn: Spawn, run: RunDir) -> None:
    """On its time, by its own handler, and the read goes on."""
    fault = start(spawn, run, "handled", fault="foreign_alarm.py")
    assert fault.ends() == 0
    assert fault.output.splitlines() == ["rang", "read 1"]


def test_a_foreign_alarm_without_a_handler_ends_the_process(spawn: Spawn, run: RunDir) -> None:
    """As it would have without us."""
    assert start(spawn, run, "default", fault="foreign_alarm.py").ends() == -signal.SIGALRM
