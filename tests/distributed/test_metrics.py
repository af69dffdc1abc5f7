"""Laws of metrics over real ranks (gloo): on every rank the value of all data, or on every rank an error."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.conftest import FAULTS, Spawn

PROGRAM = FAULTS / "distributed" / "metrics.py"
LIMIT, GRACE = 1.0, 1.0
LATE = 1.5  # beyond the promise: others have the processors too
START = 60.0
BROKEN = ("alone_unguarded", "cached_unguarded", "alone", "elsewhere", "killed", "stopped", "patient")
FIDS = ("good_fid", "good_afterwards")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

Said = dict[tuple[str, int], dict[str, Any]]


def ranks(spawn: Spawn, world: int, *cases: str, awaited: int | None = None) -> Said:
    """Run cases, each with its own ranks, and return what they said, by case and rank.

    All until their end, or the first `awaited`.
    """
    pytest.importorskip("torchmetrics")
    started = spawn(PROGRAM, str(world), str(LIMIT), *cases, torch=True)

    def said() -> list[dict[str, Any]]:
        return [json.loads(line) for line in started.output.splitlines() if line.startswith("{") and line[-1] == "}"]

    if awaited is None:
        assert started.ends(START) == 0, started.output
    else:
        started.when(lambda: len(said()) > awaited, START)
    return {(one["case"], one["rank"]): one for one in said()}


def together(world: int) -> dict[str, list[Any]]:
    """Return what each case in which all go on gives, by rank."""
    numbers = range(1, world + 1)
    last = {2: [[0.0]] * 2, 4: [[0.0, 10.0, 11.0, 20.0, 21.0]] * 4}
    total = float(sum(numbers))
    return {
        "good_cached": [total] * world,
        "good_collection": [[total, total / world, list(numbers), total + 10 * world]] * world,
        "good_wrapped": [{"raw": total, "max": total, "min": total}] * world,
        "good_expression": [total + 2 * world] * world,
        "good_uncached": [1.0] * world,
        "good_boxes": [[*numbers, *[9] * world]] * world,
        "good_uneven": last[world],
        "good_rows": [[[number] * 3 for number in range(world - 1) for _ in range(2)]] * world,
        "good_mean": [[(world - 1) / 2, sum(n * n for n in range(world)) / sum(range(world)), 1.0]] * world,
    }


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_come_together_get_the_value_of_all_data(spawn: Spawn, world: int) -> None:
    """And one that fails, or holds something else, is an error on every rank, after which they may go on."""
    said = ranks(spawn, world, "good")
    one = said["one", 0]["value"]
    for case in FIDS:  # computed again from the cache of all, too
        for rank in range(world):
            assert said[case, rank]["value"] == [pytest.approx(one, rel=1e-5)] * 2
    for case, expected in together(world).items():
        for rank in range(world):
            assert said[case, rank].get("value") == expected[rank], said[case, rank]
    for rank in range(world):
        mine, decided = said["good_local", rank]["value"]
        assert decided == pytest.approx(one, rel=1e-5)
        assert mine == (decided if rank == 0 else None)
    assert len({said["good_subprocess", rank]["value"] for rank in range(world)}) == 1
    assert math.isfinite(said["good_subprocess", 0]["value"])
    wrong(said, world)
    if world == 4:
        assert [said["group_part", rank]["value"] for rank in range(4)] == [3.0, 3.0, None, None]


def wrong(said: Said, world: int) -> None:
    """Hold the cases in which they may not compute to their errors, on every rank."""
    errors = {
        "bad_updates": ("RanksDisagree", "rank 0: 1, rank 1: 2"),
        "bad_kind": ("RanksDisagree", "rank 0: MeanMetric, mean_value float32 scalar"),
        "bad_off": ("RanksDisagree", "rank 1: SumMetric, sum_value float32 scalar dim_zero_sum, sync_on_compute=False"),
        "bad_device": ("InputError", "sum_value lie on cpu, and the process group"),
        "bad_value": ("InputError", "rank 1 is not one number"),
    }
    for case, (kind, words) in errors.items():
        for rank in range(world):
            assert said[case, rank]["error"] == kind, said[case, rank]
            assert words in said[case, rank]["words"]
    for case, kind in (("bad_compute", "MemoryError"), ("bad_thing", "InputError")):
        assert said[case, 0]["error"] == "RankFailed"
        assert f"rank 1 failed in 'loss': {kind}: " in said[case, 0]["words"]
        assert said[case, world - 1]["error"] == kind


def test_a_metric_that_not_all_compute_is_an_error_that_names_the_rank(spawn: Spawn) -> None:
    """Unguarded it waits until the process group gives up, or gives a wrong value."""
    said = ranks(spawn, 2, *BROKEN, awaited=10)
    for case, rank in (("alone_unguarded", 0), ("cached_unguarded", 1)):
        assert said[case, rank]["error"] == "RuntimeError"
        assert said[case, rank]["seconds"] >= LIMIT
    assert said["cached_unguarded", 0]["value"] == 1.0  # of its own data
    for case in ("alone", "killed", "stopped"):
        assert said[case, 0]["error"] == "RanksMissing", said[case, 0]
        assert said[case, 0]["ranks"] == [1]
        assert said[case, 0]["seconds"] < LIMIT + GRACE + LATE
    assert "is stopped" in said["stopped", 0]["words"]
    assert "is dead" in said["killed", 0]["words"]
    for rank in (0, 1):
        assert said["patient", rank].get("value") == 7.0, said["patient", rank]
        assert said["elsewhere", rank]["error"] == "RanksDisagree"
        assert (
            "rank 0 is at #1 metric 'fid', rank 1 is at #1 barrier 'end of epoch'" in said["elsewhere", rank]["words"]
        )
        assert said["elsewhere", rank]["seconds"] < LIMIT + GRACE + LATE


def test_every_rank_that_came_learns_which_one_did_not(spawn: Spawn) -> None:
    """Not rank 0 alone."""
    said = ranks(spawn, 4, "alone", awaited=3)
    for rank in range(3):
        assert (said["alone", rank]["error"], said["alone", rank]["ranks"]) == ("RanksMissing", [3])
        assert said["alone", rank]["seconds"] < LIMIT + GRACE + LATE
