"""Laws of hangs of several ranks, with real gloo processes: each is shown to hang, and then to have an end."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests import tree
from tests.conftest import FAULTS, Warm

LIMIT = 1.5
MORE = 1.0 + 1.5
"""Behind its limit a wait may take so long to say who is missing; the rest is for machines that others share."""
END = 4.0
"""And then its process may take so long to end."""
STILL = 2.0
"""Whoever waits for so long, where nothing was to be waited for, hangs."""
HARD = 60.0

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found again in /proc"),
]

HANGS = ("fid", "mismatch", "early_stop", "killed", "stopped", "stopped_host", "unpicklable", "cached")
ALONE = {"killed": 1, "stopped": 1, "stopped_host": 0, "cached": 1}
"""The rank that says nothing, because it is dead, is stopped or does not come."""
MISSING = {**ALONE, "never_again": 1}
WAYS_OUT = {"ok": "go on", "early_stop_agreed": 2}


@dataclass
class Rank:
    """What became of one rank."""

    said: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    ended: float = 0.0
    again: float = 0.0


@dataclass(frozen=True)
class Launch:
    """All cases of one launch."""

    world: int
    ranks: dict[str, dict[int, Rank]]
    outcome: tree.Outcome

    def told(self, case: str) -> dict[int, Rank]:
        """Return the ranks of a case that must have come to an outcome."""
        expected = set(range(self.world)) - {ALONE.get(case, -1)}
        told = {rank: one for rank, one in self.ranks[case].items() if one.said}
        assert told.keys() == expected, self.outcome.output
        return told


Launched = Callable[[str, int], Launch]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Launched:
    """Give the launch of all cases of a kind, made when it is first asked for."""

    @functools.cache
    def launch(kind: str, world: int) -> Launch:
        more = ("never_again", "failed", "ahead", *WAYS_OUT) if kind == "guarded" and world == 2 else ()
        limit = LIMIT if kind == "guarded" else 1.0
        command = [str(FAULTS / "distributed" / "hangs.py"), str(world), kind, str(limit)]
        ends = ["stopped_host!" if case == "stopped_host" and world == 2 else case for case in (*HANGS, *more)]
        folder = tmp_path_factory.mktemp("hangs")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        outcome = tree.run([*command, *ends], folder, env, hard=HARD, warm=warm())
        return Launch(world, ranks_of(outcome.output.splitlines()), outcome)

    return launch


def ranks_of(lines: Sequence[str]) -> dict[str, dict[int, Rank]]:
    """Return what the program has told, by case and rank."""
    ranks: dict[str, dict[int, Rank]] = defaultdict(lambda: defaultdict(Rank))
    for line in lines:
        if not line.startswith('{"case"'):
            continue
        told = json.loads(line)
        one = ranks[told["case"]][told["rank"]]
        if "ended" in told:
            one.code, one.ended = told["code"], told["ended"]
        elif "again" in told:
            one.again = told["again"]
        else:
            one.said = told
    return ranks


def texts(ranks: dict[int, Rank]) -> str:
    return "\n".join(one.said["text"] for one in ranks.values())


@pytest.mark.parametrize("case", HANGS)
def test_without_us_it_hangs(launched: Launched, case: str) -> None:
    """Until torch's own timeout, which stands at half an hour where nobody has chosen another."""
    waited = [one.said["seconds"] for one in launched("unguarded", 2).told(case).values()]
    assert max(waited) > STILL


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", [case for case in HANGS if case in MISSING])
def test_who_is_missing_is_named_in_time_by_every_rank_that_is_there(launched: Launched, case: str, world: int) -> None:
    """Also when it is the one in whose process the store is."""
    for one in launched("guarded", world).told(case).values():
        assert one.said["error"] == "RanksMissing"
        assert one.said["ranks"] == [MISSING[case]]
        assert one.said["seconds"] < LIMIT + MORE


@pytest.mark.parametrize("world", [2, 4])
def test_a_death_on_this_machine_is_named_at_once(launched: Launched, world: int) -> None:
    """Although a worker of the dead one holds its connections open: within a second, not at the limit."""
    for one in launched("guarded", world).told("killed").values():
        assert "is dead" in one.said["text"]
        assert "did not finish within" not in one.said["text"]
        assert one.said["seconds"] < MORE


def test_what_the_missing_one_does_is_said(launched: Launched) -> None:
    """Whether it runs, and in which collective it is, also without a heartbeat."""
    run = launched("guarded", 2)
    assert "(pid" in texts(run.told("stopped"))
    assert "is stopped" in texts(run.told("stopped"))
    assert "is stopped" in texts(run.told("stopped_host"))
    ranks = run.told("fid")
    assert "is in #2 collective 'fid.compute' since" in ranks[1].said["text"]
    assert "#2 barrier 'end of epoch'" in ranks[0].said["text"]


@pytest.mark.parametrize("world", [2, 4])
def test_a_metric_on_rank_0_alone_names_the_others_and_is_named_by_them(launched: Launched, world: int) -> None:
    """The FID deadlock: rank 0 waits in its compute, the others at the end of the epoch."""
    ranks = launched("guarded", world).told("fid")
    assert ranks[0].said["ranks"] == list(range(1, world))
    assert all(ranks[rank].said["ranks"] == [0] for rank in range(1, world))
    assert max(one.said["seconds"] for one in ranks.values()) < LIMIT + MORE


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("case", "places"),
    [("mismatch", ("'after saving'", "'end of epoch'")), ("early_stop", ("'end'", "'end of epoch' (epoch 2)"))],
)
def test_ranks_at_different_places_hear_of_it_at_once(
    launched: Launched, case: str, places: tuple[str, str], world: int
) -> None:
    """Each says where every rank is."""
    for one in launched("guarded", world).told(case).values():
        assert one.said["error"] == "RanksDisagree"  # and at the limit it would be RanksMissing
        assert one.said["seconds"] < LIMIT + MORE
        assert all(place in one.said["text"] for place in places)


def test_ranks_at_different_steps_hear_of_it(launched: Launched) -> None:
    """Epoch and step are part of the agreement."""
    for one in launched("guarded", 2).told("ahead").values():
        assert one.said["error"] == "RanksDisagree"
        assert "(epoch 1, step 100)" in one.said["text"]
        assert "(epoch 1, step 101)" in one.said["text"]


@pytest.mark.parametrize(
    ("case", "own", "message", "world"),
    [
        ("unpicklable", "TypeError", "not list", 2),
        ("unpicklable", "TypeError", "not list", 4),
        ("failed", "OSError", "the disk is full", 2),
    ],
)
def test_an_error_of_rank_0_is_raised_on_every_rank(
    launched: Launched, case: str, own: str, message: str, world: int
) -> None:
    """There as it is, elsewhere with its name, its message and the rank."""
    ranks = launched("guarded", world).told(case)
    assert [one.said["error"] for _, one in sorted(ranks.items())] == [own, *["RankFailed"] * (world - 1)]
    assert message in ranks[1].said["text"]
    assert "rank 0 failed in" in ranks[1].said["text"]
    assert max(one.said["seconds"] for one in ranks.values()) < LIMIT + MORE


def test_who_gave_up_is_not_made_to_wait_again_nor_is_who_comes_too_late(launched: Launched) -> None:
    """Every further meeting fails at once; the late one is told by what the others have left in the store."""
    ranks = launched("guarded", 2).told("never_again")
    assert ranks[0].said["text"] == ranks[1].said["text"]
    assert ranks[1].said["seconds"] < LIMIT + MORE
    assert max(one.again for one in ranks.values()) < LIMIT / 4


@pytest.mark.parametrize("case", WAYS_OUT)
def test_ranks_that_agree_come_to_the_same(launched: Launched, case: str) -> None:
    """The way out of the split: one decision for all."""
    for one in launched("guarded", 2).told(case).values():
        assert one.said["value"] == WAYS_OUT[case], one.said["text"]
        assert one.code == 0


@pytest.mark.parametrize("world", [2, 4])
def test_every_process_ends_soon_after_its_error(launched: Launched, world: int) -> None:
    """No thread of ours keeps it, and no collective that is left pending; nothing of it is left."""
    run = launched("guarded", world)
    for case in HANGS:
        for one in run.told(case).values():
            assert one.code == 1, f"{case}: {run.outcome.output}"
            assert one.ended - one.said["at"] < END, case
    assert not run.outcome.left
