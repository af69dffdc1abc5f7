"""Laws of a training on two ranks: they begin alike, stay alike, and what fails on one of them is heard by both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from fluxguard import distributed
from tests.conftest import FAULTS, Spawn

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

PROGRAM = FAULTS / "distributed" / "training.py"
ALIKE = {
    "takes_rank_0s_values": "True",
    "compressed": "['None True', 'bf16 True', 'fp16 True', 'powersgd True']",
    "lays_its_buckets_before_the_first_step": str([(True, laid, True) for laid in (True, False, False, False, True)]),
    "lays_the_buckets_of_any_model_and_leaves_it_as_it_was": "(True, True, True)",
    "leaves_an_optimizer_within_the_backward_alone": "0",
    "accumulates_without_meeting": "(True, True, '0.weight', 'Linear')",
    "builds_alike": "(True, True)",
    "builds_apart_but_ends_alike": "True",
    "a_state_that_one_rank_finds_damaged": "step-00000001",
    "of_more_ranks_with_a_sampler": "(2, 4, False, 4, 24)",
}
BOTH = {
    "differs_in_values": r"RanksDisagree.*rank 1 has 2\.bias: 2, float32, trained, values \w+, rank 0 has 2\.bias",
    "differs_in_shape": r"RanksDisagree.*rank 1 has 0\.weight: 5x3, .*rank 0 has 0\.weight: 4x3",
    "differs_in_what_is_trained": r"RanksDisagree.*rank 1 has 0\.weight: 4x3, float32, frozen.*rank 0 .* trained",
    "differs_in_layers": r"RanksDisagree.*rank 1 has no such parameter, rank 0 has 3\.weight",
    "sync_batchnorm_on_a_cpu": r"InputError: sync_batchnorm: needs GPUs",
    "wrapped_twice": r"InputError: model: is wrapped already",
    "of_more_ranks_than_saved_it": r"InputError.*was saved by 1 ranks within an epoch, here are 2",
}
ONE = {
    "unknown_compression_on_one_rank": (1, r"InputError: compression: 'gzip' is none", r"RankFailed: rank 1 failed"),
    "broken_weights": (0, r"InputError: .*broken\.safetensors", r"RankFailed: rank 0 .*broken\.safetensors"),
    "build_fails_on_one_rank": (1, "MemoryError: no room", r"RankFailed: rank 1 .*no room"),
    "names_who_is_missing_in_a_backward": (0, r"RanksMissing: .*'gradients'.*rank 1 did not come", "did not come"),
    "a_disk_that_is_full_for_one_rank": (1, "OSError: .*No space", r"RankFailed: rank 1 .*No space"),
}
EACH = {
    "resumes_exactly": "(3, {{'rank': {rank}}}, True, True, True)",
    "disks_of_their_own": "('step-00000002', 6, 1, {{'rank': {rank}}})",
}


def of_one(folder: Path) -> None:
    """Save what one process alone has trained: two steps of four batches of two."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sampler = distributed.Sampler(range(64), batch_size=2, step_size=8)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    distributed.save_state(folder, step=2, epoch=0, batch=8, model=model, optimizer=optimizer, sampler=sampler)


def expected(rank: int) -> dict[str, str]:
    """Return the pattern of what a rank must say of each case."""
    patterns = {name: re.escape(words) for name, words in ALIKE.items()}
    patterns |= BOTH
    patterns |= {name: own if rank == bad else others for name, (bad, own, others) in ONE.items()}
    return patterns | {name: re.escape(words.format(rank=rank)) for name, words in EACH.items()}


def test_two_ranks_begin_alike_stay_alike_and_hear_of_what_fails_on_one(spawn: Spawn, tmp_path: Path) -> None:
    """Each case by its name, all in one launch; no case keeps the next one from coming right."""
    of_one(tmp_path / "of one")
    cases = list(expected(0))
    ranks = [
        spawn(PROGRAM, tmp_path, *cases, env={"RANK": str(rank), "WORLD_SIZE": "2"}, torch=True) for rank in range(2)
    ]
    assert [one.ends() for one in ranks] == [0, 0], "".join(one.output for one in ranks)
    for rank, one in enumerate(ranks):
        told = dict(re.findall(rf"^rank {rank}: (\w+): (.*)$", one.output, re.MULTILINE))
        wrong = {
            name: told.get(name) for name, right in expected(rank).items() if not re.match(right, told.get(name, ""))
        }
        assert not wrong, one.output
        assert f"rank {rank} left: []" in one.output
        assert not one.living()
    assert "passed over: step 2: model.safetensors is not what was saved" in ranks[0].output
    assert "passed over: step 2 is not with rank 1" in ranks[0].output
