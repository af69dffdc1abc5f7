"""What only two GPUs can show: ranks over NCCL train, agree, compute a metric, and name the one that does not come."""

from __future__ import annotations

import re
from pathlib import Path

import pynvml
import pytest

from tests.conftest import FAULTS, ROOT, Spawn

pytestmark = [pytest.mark.integration, pytest.mark.gpu, pytest.mark.timeout(240)]

WITHIN = 120.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(autouse=True)
def _two_gpus() -> None:
    try:
        pynvml.nvmlInit()
        cards = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        cards = 0
    if cards < 2:
        pytest.skip("needs two NVIDIA cards")


def test_the_whole_example_trains_over_nccl(spawn: Spawn, tmp_path: Path) -> None:
    """Each rank on the device of its local number; both end with the same weights."""
    ranks = spawn(*TORCHRUN, ROOT / "docs" / "examples" / "train_ddp.py", "--output-dir", tmp_path, "--bf16")
    assert ranks.ends(WITHIN) == 0, ranks.output
    sums = re.findall(r"finished: weights (\S+),", ranks.output)
    assert len(sums) == 2
    assert len(set(sums)) == 1
    assert "nccl" in ranks.output


def test_the_doctor_adds_up_right_over_nccl(spawn: Spawn) -> None:
    """Its table names both GPUs."""
    ranks = spawn(*TORCHRUN, "-m", "fluxguard", "doctor", "--distributed")
    assert ranks.ends(WITHIN) == 0, ranks.output
    assert "All-reduce over nccl: right" in ranks.output


def test_a_rank_that_does_not_come_is_named_beside_nccl(spawn: Spawn) -> None:
    """The store in which the ranks meet does not depend on the backend."""
    ranks = spawn(FAULTS / "distributed" / "nccl.py", "2", torch=False)
    ranks.ends(WITHIN)
    for rank in range(2):
        assert f"rank {rank} on nccl cuda:{rank}: (7, 0.5)" in ranks.output
    assert "rank 0 misses (1,): barrier 'end of epoch'" in ranks.output
