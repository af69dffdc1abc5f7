"""Laws of the beginning: ranks that fit work together, and every other start is one clear error on every rank."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat
from fluxguard.distributed import bounded, world
from fluxguard.distributed.meetings import leftover
from fluxguard.distributed.start import hearts, reaching
from fluxguard.distributed.start.environment import Place
from fluxguard.errors import DeadlineExceeded
from fluxguard.heartbeat import Heart
from fluxguard.rundir import BEATS_OF
from tests.conftest import FAULTS, Spawn

SETUPS = FAULTS / "distributed" / "setups.py"
LIMIT = 4.0
SLOW = 12.0  # for forty processes that begin at once on few processors

WELL = {"all well": True, "group of another": False, "two rounds": True}
"""What works, and whether the group is gone after teardown."""

WRONG: dict[str, tuple[str, int | None, str]] = {
    "no rank": ("RANK", None, "is missing"),
    "no number": ("WORLD_SIZE", 1, "is 'two'"),
    "rank too high": ("RANK", 2, "WORLD_SIZE is 2"),
    "rank 0 twice": ("RANK", 0, "two processes have it"),
    "rank 1 twice": ("RANK", 1, "two processes have it"),
    "other sizes": ("WORLD_SIZE", 1, "is 3, but 2 on rank 0"),
    "one missing": ("WORLD_SIZE", 2, "rank 2 did not come"),
    "debug on one": ("TORCH_DISTRIBUTED_DEBUG", 1, "'DETAIL', but not set"),
    "store by the launcher": ("RANK", 0, "two processes have it"),
}
"""What every process of a case says: the variable, the rank, and words."""

EACH: dict[str, list[tuple[str, int | None, str]]] = {
    "no port": [("WORLD_SIZE", 1, "rank 1 did not come"), ("MASTER_PORT", 1, "is missing")],
    "port in use": [("MASTER_PORT", 0, "uses already"), ("RANK", 0, "taken by another training")],
    "silent port": [("MASTER_PORT", 1, "does not answer as the ranks' store")],
    "rank 0 missing": [("MASTER_ADDR", 1, "nobody listens")],
    "unreachable": [("WORLD_SIZE", 1, "rank 1 did not come"), ("MASTER_ADDR", 1, "203.0.113.7")],
    "no such name": [("WORLD_SIZE", 1, "rank 1 did not come"), ("MASTER_ADDR", 1, "does not resolve")],
    "address of another": [("WORLD_SIZE", 1, "no address of"), ("MASTER_ADDR", 1, "203.0.113.7")],
}
"""What each process says, where they cannot reach each other."""


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_every_wrong_start_is_one_error_on_every_rank_within_the_limit(spawn: Spawn) -> None:
    """It names the rank, the variable and what to do; where the ranks reach each other, in the same words on all."""
    program = spawn(SETUPS, str(LIMIT), torch=True)
    assert program.ends() == 0, program.output
    said = [json.loads(line) for line in program.output.splitlines() if line.startswith('{"case"')]
    told: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(said, key=lambda one: int(one["process"])):
        told.setdefault(one["case"], []).append(one)
    assert set(told) == {*WRONG, *EACH, *WELL}
    for case, expected in WRONG.items():
        assert len({one.get("error") for one in told[case]}) == 1, told[case]
        for one in told[case]:
            assert (one["variable"], one["rank"]) == expected[:2], one
            assert expected[2] in one["error"], one
    for case, each in EACH.items():
        for one, expected in zip(told[case], each, strict=True):
            assert (one["variable"], one["rank"]) == expected[:2], one
            assert expected[2] in one["error"], one
    assert max(one["seconds"] for one in said) < LIMIT + SLOW
    for case, leaves in WELL.items():
        _well(told[case], leaves)


def _well(ranks: list[dict[str, Any]], leaves: bool) -> None:
    for number, one in enumerate(ranks):
        assert one["sum"] == 3.0, one
        assert one["same"], "a second call gives the same world"
        assert one["left"] == leaves, "what somebody else has made is his to end"
        before, after = one["lines"]
        assert before.startswith(f"rank {number} of 2 on ")
        assert f"RANK={number}" in before
        assert "is set up in" in after


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_collective_that_never_ends_does_not_keep_a_failed_program_from_ending(spawn: Spawn) -> None:
    """torch would wait for it, as long as the other rank lives."""
    program = spawn(FAULTS / "distributed" / "pending.py", torch=False)
    failed = program.until("it fails")
    assert program.ends() == 1
    assert time.monotonic() - failed < SLOW
    assert "RuntimeError: it fails" in program.output


def test_a_call_that_never_returns_is_given_up() -> None:
    """It goes on in a thread that keeps nobody from ending."""
    stop = threading.Event()
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="a stuck call"):
        bounded.within(0.05, "a stuck call", stop.wait)
    assert time.monotonic() - began < 5
    assert all(one.daemon for one in threading.enumerate() if one.name == "fluxguard-a-stuck-call")
    assert "fluxguard-a-stuck-call" in [one.name for one in leftover._left]  # or it might abort the process at its end
    stop.set()


def test_what_a_bounded_call_returns_or_raises_comes_through() -> None:
    """With a limit and without."""

    def fails() -> None:
        raise KeyError("x")

    assert bounded.within(None, "a call", lambda: 3) == 3
    with pytest.raises(KeyError):
        bounded.within(5.0, "a call", fails)


def test_a_process_without_ranks_is_a_world_of_one() -> None:
    """Nothing is set up for it to ask."""
    here = world.current()
    assert (here.rank, here.size, here.main, here.backend, here.device) == (0, 1, True, "", None)
    assert world.store() is None


def test_an_address_of_another_machine_is_told_from_our_own() -> None:
    """Rank 0 keeps the store, so the address has to be its own, unless the launcher keeps it."""
    away = Place(rank=0, size=2, address="203.0.113.7", port=1)
    assert "no address of" in reaching.not_ours(away)
    assert reaching.not_ours(Place(rank=0, size=2, address="203.0.113.7", port=1, by_launcher=True)) == ""
    assert reaching.not_ours(Place(rank=0, size=2, address="127.0.0.1", port=1)) == ""
    assert reaching.not_ours(Place(rank=0, size=2, path="/tmp/meet")) == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory file system")
def test_heartbeats_without_a_supervisor_lie_by_job_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs never share a folder."""
    monkeypatch.delenv("FLUXGUARD_RUN", raising=False)
    one, other = hearts.folder("a:1"), hearts.folder("a:2")
    assert one is not None
    assert one != other
    place = hearts.begin("a test of hearts", 0)
    assert place is not None
    assert place.is_dir()
    hearts.end(place, 0)
    assert not place.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory file system")
def test_what_killed_ranks_have_left_in_memory_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what is new, what a supervised run has, what does not say whose it is, or where a rank lives."""
    monkeypatch.setattr(hearts, "beats_in_memory", lambda: tmp_path / "fluxguard-7-")
    monkeypatch.setattr(hearts, "_may_live", lambda pid: pid == os.getpid())
    owners = {"dead": "over", "lives": "over", "new": "over", "supervised": "out/.fluxguard", "unknown": ""}
    for name, owner in owners.items():
        place = tmp_path / f"fluxguard-7-{name}"
        place.mkdir()
        with monkeypatch.context() as of_another:
            if name != "lives":
                of_another.setattr(os, "getpid", lambda: 2**22 + 1)
            Heart(heartbeat.path_for(place, 0))
        if owner:
            (place / BEATS_OF).write_bytes(os.fsencode(place / owner))
    (tmp_path / "fluxguard-7-link").symlink_to(tmp_path / "fluxguard-7-dead")
    now = time.time()
    os.utime(tmp_path / "fluxguard-7-new", (now + 99, now + 99))
    hearts.clear(now + 100)
    assert {one.name.rpartition("-")[2] for one in tmp_path.iterdir()} == {*owners, "link"} - {"dead"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory file system")
def test_a_process_that_is_not_ours_may_live() -> None:
    """Only one that is not there does not."""
    assert hearts._may_live(os.getpid())
    assert hearts._may_live(1)
    assert not hearts._may_live(2**22 + 1)
