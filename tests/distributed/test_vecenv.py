"""Laws of the example of reinforcement learning: on several ranks, a silent environment is named by every rank."""

from __future__ import annotations

import re
import time

import pytest

from tests import torchrun
from tests.conftest import POLL, ROOT, Spawn

EXAMPLE = ROOT / "docs" / "examples" / "vecenv_ddp.py"
LIMIT = 1.0
SILENT = r"environment 2 of rank 1 has not answered for (\d+\.\d) s"
GONE = 2.0


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_an_environment_that_never_answers_is_named_by_every_rank(spawn: Spawn) -> None:
    """Under torchrun: which rank, which environment, for how long; then all end, and no process is left."""
    options = ["--environments", "3", "--stuck", "1:2", "--limit", str(LIMIT)]
    launch = ("--standalone", "--nproc-per-node", "2", *torchrun.FORKED)
    run = spawn(torchrun.program(), *launch, EXAMPLE, *options, torch=True)
    assert run.ends() != 0
    seeds = re.findall(r"rank \d of 2 draws from seed (\d+)", run.output)
    assert len(set(seeds)) == 2, run.output
    said = [re.search(rf"rank {rank} ends: .*{SILENT}", run.output) for rank in (0, 1)]
    assert all(words and float(words[1]) < LIMIT + 1 for words in said), run.output
    assert "rank 0 ends: rank 1 failed in 'rollout': TimeoutError: environment 2" in run.output
    until = time.monotonic() + GONE  # those of a rank that torchrun has ended go a moment after it
    while run.living() and time.monotonic() < until:
        time.sleep(POLL)
    assert not run.living()
