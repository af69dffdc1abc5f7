"""A rank killed at a random step under torchrun: `make kills` does it ten times, the tests once."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests import torchrun
from tests.conftest import ROOT, Spawn, Spawned

KILLS = int(os.environ.get("CAMPAIGN_KILLS", "2")) // 2
SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
STEPS_PER_EPOCH = 8
EPOCHS = 3 * KILLS + 3
STEPS = EPOCHS * STEPS_PER_EPOCH
WINDOW = STEPS // (KILLS + 1) - STEPS_PER_EPOCH
"""In how many steps after a beginning the kill comes; what is left is for the steps that pass before it arrives."""

EXAMPLE = ROOT / "docs" / "examples" / "train_ddp.py"
GIVEN = ("--epochs", str(EPOCHS), "--patience", "1000", "--save-every", "3", "--batch-size", "4")
RANKS = (2, 4) if KILLS > 1 else (2,)
"""With more than two the order in which gradients are summed shows in the last bits."""
HARD = 30.0 + 30.0 * KILLS
BEGINS, APPLIED = r"rank {} of \d begins at step (\d+)", r"rank {} applied step (\d+)"
POLL = 0.002
"""A step takes a few milliseconds."""
ENDED = r"rank (\d) finished: (weights \S+, loss \S+, steps \[.*\])"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2 * HARD)]


def undisturbed(spawn: Spawn, folder: Path, size: int) -> list[str]:
    """Return what all ranks say at the end of a training that nothing happens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(size)}
    ranks = [
        spawn(
            EXAMPLE, *GIVEN, "--output-dir", folder, torch=True, env={**meeting, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(size)
    ]
    assert {one.ends(HARD) for one in ranks} == {0}, ranks[0].output
    return [words for one in ranks for _, words in re.findall(ENDED, one.output)]


def beginnings(training: Spawned) -> list[int]:
    """Return the steps at which rank 0 began, attempt by attempt."""
    return [int(step) for step in re.findall(BEGINS.format(0), training.output)]


def newest(training: Spawned) -> str:
    """Return what the newest attempt has said since rank 0 began."""
    return training.output.rpartition(" begins at step ")[2]


def kill(training: Spawned, rank: int, step: int) -> None:
    """Kill a rank behind a step as the system does when memory is short: without a word."""
    ranks = sorted(psutil.Process(training.pid).children(), key=lambda one: one.pid)
    until = time.monotonic() + HARD
    while f"rank {rank} applied step {step}\n" not in newest(training):
        assert time.monotonic() < until, training.output
        time.sleep(POLL)
    ranks[rank].send_signal(signal.SIGKILL)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("seed", [SEED])
def test_a_rank_killed_at_a_random_step_changes_nothing(spawn: Spawn, tmp_path: Path, seed: int, size: int) -> None:
    """Every planned step once, the ranks' weights equal, and equal bit for bit to those of an undisturbed training."""
    chance = random.Random(seed)
    right = undisturbed(spawn, tmp_path / "whole", size)
    launch = ("--standalone", "--nproc-per-node", str(size), "--max-restarts", str(KILLS), *torchrun.FORKED)
    training = spawn(torchrun.program(), *launch, EXAMPLE, *GIVEN, "--output-dir", tmp_path / "killed", torch=True)
    for killed in range(KILLS):
        training.when(lambda killed=killed: len(beginnings(training)) > killed, HARD)  # type: ignore[misc]
        begun = beginnings(training)[-1]
        rank, step = chance.randrange(size), begun + chance.randint(1, WINDOW)
        kill(training, rank, step)
    assert training.ends(HARD) == 0, training.output
    assert len(beginnings(training)) == KILLS + 1
    steps = list(range(1, STEPS + 1))
    assert right == [right[0]] * size
    assert right[0].endswith(f"steps {steps}")
    assert [words for _, words in re.findall(ENDED, newest(training))] == right, training.output
    weights = [(tmp_path / run / "final.safetensors").read_bytes() for run in ("killed", "whole")]
    assert weights[0] == weights[1]
    assert_no_step_is_left_out(training.output, size)
    assert not training.living()


def assert_no_step_is_left_out(output: str, size: int) -> None:
    """What each attempt of each rank applied follows on where it began, and it begins where a state was."""
    for rank in range(size):
        applied = 0
        for line in re.findall(f"{BEGINS.format(rank)}|{APPLIED.format(rank)}", output):
            if line[0]:
                assert int(line[0]) <= applied
                applied = int(line[0])
            else:
                applied += 1
                assert int(line[1]) == applied
