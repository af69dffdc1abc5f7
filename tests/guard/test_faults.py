"""What the law of test_every_way.py leaves out: what exactly is said and set aside, and who is not ended at all."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat
from fluxguard.rundir import AGAIN, RunDir
from tests.conftest import FAULTS, Spawn, Spawned

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

LIMIT = 1.0
GRACE = 4.0
"""Seconds for what follows a limit, beside the tests of other workers; how long it takes is measured in tests/bench."""
NEARLY = "waiting [0, 1, 2, 3, 4, 5, 6, 7"
"""Written milliseconds before the worker that loads sample 13 gets stuck."""
ATTEMPT = "6f1e7c1a-0000-4000-8000-00000000abcd"


@dataclass
class Supervised:
    """A run directory as a supervisor would have made it, with small limits."""

    run: RunDir
    env: dict[str, str]

    def last_words(self) -> dict[str, Any]:
        """Return what the trainer said before its end."""
        words = json.loads(self.run.last_words(0).read_text())
        assert words["attempt"] == ATTEMPT
        assert isinstance(words, dict)
        return words


@pytest.fixture
def supervised(tmp_path: Path) -> Supervised:
    run = RunDir(tmp_path / "out")
    run.create()
    beats = tmp_path / "beats"
    beats.mkdir()
    (run.run).write_text(json.dumps({"version": 1, "beats": str(beats)}))
    waits = {"block_swap": LIMIT, "batch": LIMIT, "first_batch": 20, "read": LIMIT}
    run.limits.write_text(json.dumps({"version": 1, "wait": waits, "max_heals": 0}))
    env = {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_ATTEMPT": ATTEMPT, "FLUXGUARD_LIMITS": str(run.limits)}
    return Supervised(run, env)


def gone(fault: Spawned, since: float, within: float = LIMIT + GRACE) -> int:
    """Wait until the program and all its children are gone, in time, and return its exit code."""
    code = fault.ends(within + 5)
    while fault.living() and time.monotonic() < since + within + 5:
        time.sleep(0.01)
    took = time.monotonic() - since
    assert not fault.living()
    assert took < within, f"gone only {took:.2f} s after the wait began:\n{fault.output}"
    return code


def beat(supervised: Supervised) -> heartbeat.Beat:
    """Return the last beat of the trainer."""
    last = heartbeat.read(heartbeat.path_for(supervised.run.beats(), 0))
    assert last is not None
    return last


def test_a_swap_that_never_returns_ends_the_trainer(spawn: Spawn, supervised: Supervised) -> None:
    """A stuck pool thread cannot hold the process; last words, stacks and heartbeat say where it was."""
    trainer = spawn(FAULTS / "stuck_swap.py", "begin", env=supervised.env)
    since = trainer.until("waiting")
    assert gone(trainer, since) == AGAIN
    words = supervised.last_words()
    assert (words["cause"], words["verdict"], words["limit"]) == ("block swap", "again", LIMIT)
    assert LIMIT <= words["waited"] < LIMIT + 0.5
    assert "block swap did not finish within 1 s" in trainer.output
    assert "waits.py" in supervised.run.stacks(0).read_text()
    assert beat(supervised).wait == "block swap"


def test_without_a_supervisor_the_stacks_are_on_standard_error(spawn: Spawn, supervised: Supervised) -> None:
    """A user without a supervisor gets the exit code, the sentence and the stacks."""
    env = {"FLUXGUARD_LIMITS": supervised.env["FLUXGUARD_LIMITS"]}
    trainer = spawn(FAULTS / "stuck_swap.py", "begin", env=env)
    assert gone(trainer, trainer.until("waiting")) == AGAIN
    assert "waits.py" in trainer.output


WAYS = [["persistent"], ["spawn"], ["persistent", "accelerate"], ["middle"]]
"""One that is only stopped or only busy is in the table of test_every_way.py."""


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_a_stuck_loader_worker_ends_the_trainer(spawn: Spawn, supervised: Supervised, how: list[str]) -> None:
    """Also where main has passed the poll: gone, workers too, with their samples named."""
    trainer = spawn(FAULTS / "stopped_worker.py", "begin", *how, env=supervised.env)
    since = trainer.until(NEARLY)
    assert gone(trainer, since) == AGAIN
    words = supervised.last_words()
    assert words["cause"] == "loader worker"
    assert len(words["workers"]) == 1
    assert [13] in words["samples"]


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_a_stuck_loader_worker_raises_in_another_process(spawn: Spawn, supervised: Supervised, how: list[str]) -> None:
    """Outside of a trainer the wait raises WorkerStuck, and the interpreter then ends in bounded time."""
    page = spawn(FAULTS / "stopped_worker.py", *how, env=supervised.env)
    since = page.until(NEARLY)
    raised = page.until("raised WorkerStuck a batch from the loader did not finish within 1 s")
    assert raised - since < LIMIT + GRACE
    assert gone(page, raised, GRACE) == 1
    assert not supervised.run.last_words(0).exists()


@pytest.mark.parametrize("begin", ["begin", "page"])
def test_a_pinning_thread_hides_no_stuck_worker(spawn: Spawn, supervised: Supervised, begin: str) -> None:
    """With pinned memory another thread waits for the workers; main is asked only every 5 s whether it waits too."""
    trainer = spawn(FAULTS / "stopped_worker.py", "pin", begin, env=supervised.env)
    since = trainer.until(NEARLY)
    assert gone(trainer, since, 7 + LIMIT + 2 * GRACE) == (AGAIN if begin == "begin" else 1)
    assert "worker process" in trainer.output
    assert begin == "begin" or "raised WorkerStuck" in trainer.output


def test_a_trainer_that_needs_no_batch_is_not_ended(spawn: Spawn, supervised: Supervised) -> None:
    """While main samples images, a pinning thread that waits for a slow batch is no reason to end it."""
    trainer = spawn(FAULTS / "stopped_worker.py", "pin", "away", "begin", env=supervised.env)
    assert gone(trainer, trainer.until("back"), 14 + LIMIT + GRACE) == AGAIN


def test_a_pinning_thread_that_is_stuck_itself_is_named(spawn: Spawn, supervised: Supervised) -> None:
    """As in a call of the driver that does not return; no worker is blamed for it."""
    trainer = spawn(FAULTS / "stopped_worker.py", "pin", "pinstuck", "begin", env=supervised.env)
    since = trainer.until(NEARLY)
    assert gone(trainer, since, 7 + LIMIT + 2 * GRACE) == AGAIN
    words = supervised.last_words()
    assert (words["cause"], words["what"]) == ("loader worker", "the thread that pins batches in memory")
    assert words["workers"] == []


def test_a_pinning_thread_cannot_hold_the_end_of_an_epoch(spawn: Spawn, supervised: Supervised) -> None:
    """torch joins it without any limit when it ends the iterator."""
    trainer = spawn(FAULTS / "stopped_worker.py", "pin", "pinend", "begin", env=supervised.env)
    assert gone(trainer, trainer.until("leaving")) == AGAIN
    assert supervised.last_words()["what"] == "the thread that pins batches in memory"


@pytest.mark.parametrize("how", ["stuck", "shutdown", "broken"])
def test_a_picture_that_cannot_be_read_ends_the_trainer(spawn: Spawn, supervised: Supervised, how: str) -> None:
    """Neither the wait for it nor the executor that would be joined holds the process; the picture is named."""
    trainer = spawn(FAULTS / "slow_pictures.py", how, "begin", env=supervised.env)
    assert gone(trainer, trainer.until("waiting")) == AGAIN
    words = supervised.last_words()
    assert (words["cause"], words["what"]) == ("file read", "image loading")
    assert words["file"] == ("picture.png" if how == "stuck" else None)
    assert how != "stuck" or "image loading (picture.png) did not finish within 1 s" in trainer.output


def test_a_picture_that_cannot_be_read_raises_outside_of_a_trainer(spawn: Spawn, supervised: Supervised) -> None:
    """Once: the executor is not waited for a second time."""
    page = spawn(FAULTS / "slow_pictures.py", "stuck", env=supervised.env)
    since = page.until("waiting")
    raised = page.until("DeadlineExceeded: image loading (picture.png) did not finish within 1 s")
    assert raised - since < LIMIT + GRACE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the tie between parent and worker is Linux's")
def test_workers_do_not_outlive_a_killed_trainer(spawn: Spawn, supervised: Supervised) -> None:
    """A stopped worker whose trainer was killed would stay for ever, with its memory."""
    trainer = spawn(FAULTS / "stopped_worker.py", "persistent", env=supervised.env)
    trainer.until("waiting [0, 1, 2, 3, 4, 5")
    trainer.look()
    assert len(trainer.known) >= 2
    os.kill(trainer.pid, signal.SIGKILL)
    assert gone(trainer, time.monotonic()) == -signal.SIGKILL


def test_a_page_is_never_ended(spawn: Spawn, supervised: Supervised) -> None:
    """Until `train_begins`, exit_after is inert: FluxGym's page imports the same modules."""
    page = spawn(FAULTS / "late_scope.py", env=supervised.env)
    assert page.ends() == 0
    assert "lived" in page.output


def test_a_fifo_in_place_of_a_cache_is_refused_at_once(spawn: Spawn, supervised: Supervised) -> None:
    """The file is named, also when it was read in a worker, and out of the way for the next attempt."""
    trainer = spawn(FAULTS / "fifo_read.py", "worker", "begin", env=supervised.env)
    assert gone(trainer, trainer.until("waiting"), 10) == 1
    assert "CacheBroken" in trainer.output
    assert "image.npz: is a FIFO" in trainer.output
    assert (trainer.log.parent / "image.npz.broken").exists()


def test_an_open_that_blocks_is_interrupted(spawn: Spawn, supervised: Supervised) -> None:
    """On the main thread an alarm ends the wait, also in a page, with the file named and left as it is."""
    trainer = spawn(FAULTS / "fifo_read.py", "open", "page", env=supervised.env)
    assert gone(trainer, trainer.until("waiting")) == 1
    assert "DeadlineExceeded: reading image.npz did not finish within 1 s" in trainer.output
    assert (trainer.log.parent / "image.npz").exists()


@pytest.mark.parametrize(("thread", "code"), [("main", 1), ("thread", AGAIN)])
def test_a_read_that_gets_nothing_more_is_ended(spawn: Spawn, supervised: Supervised, thread: str, code: int) -> None:
    """The limit counts from the last byte: it raises where an alarm can, and ends the trainer elsewhere."""
    trainer = spawn(FAULTS / "slow_reader.py", "1.5", thread, "dry", env=supervised.env)
    assert gone(trainer, trainer.until("dry"), 2 * LIMIT + GRACE) == code
    assert "reading image.npz" in trainer.output
    if code == AGAIN:
        assert supervised.last_words()["file"] == "image.npz"


def test_a_truncated_cache_is_named(spawn: Spawn) -> None:
    """Upstream's log never names the file; the sentence of the guard reaches main through torch."""
    trainer = spawn(FAULTS / "truncated_npz.py", "worker")
    assert trainer.ends() == 1
    assert "CacheBroken" in trainer.output.splitlines()[-1] or "CacheBroken" in trainer.output
    assert "image.npz: is truncated or damaged" in trainer.output
    assert (trainer.log.parent / "image.npz.broken").exists()


def test_the_guard_costs_nothing_to_import(spawn: Spawn) -> None:
    """A page that imports hardened modules imports neither torch nor numpy, and takes less than 30 ms of computing."""
    code = (
        "import sys, time; t = time.process_time(); import fluxguard; took = time.process_time() - t\n"
        "fluxguard.train_begins, fluxguard.result, fluxguard.exit_after, fluxguard.reads\n"
        "assert not {'torch', 'numpy'} & set(sys.modules); assert took < 0.03, took"
    )
    assert spawn("-c", code).ends() == 0
