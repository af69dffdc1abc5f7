"""Laws of what descends from a trainer."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fluxguard.guard import kin
from fluxguard.rundir import AGAIN
from tests.conftest import FAULTS, POLL, Spawn

LIMIT, GRACE = 1.0, 2.0

ME, WORKER, GRANDCHILD, GREAT, SERVICE, ITS_OWN, STRANGER = 1, 2, 3, 4, 5, 6, 7
TREE = {ME: [WORKER, SERVICE], WORKER: [GRANDCHILD], GRANDCHILD: [GREAT], SERVICE: [ITS_OWN], 99: [STRANGER]}


def test_all_below_a_process_is_found_parents_first() -> None:
    """And nothing of anybody else."""
    assert kin.below(TREE, [WORKER]) == [GRANDCHILD, GREAT]
    assert kin.below(TREE, [ME]) == [WORKER, SERVICE, GRANDCHILD, ITS_OWN, GREAT]
    assert kin.below(TREE, [STRANGER]) == []


def test_a_list_that_was_made_while_pids_came_back_ends() -> None:
    """It is no picture of one moment, so a process may seem to descend from itself."""
    assert kin.below({1: [2], 2: [1]}, [1]) == [2, 1]


def test_workers_are_taken_with_all_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that multiprocessing knows, those that look like one, and no other child."""
    monkeypatch.setattr(kin, "_of_multiprocessing", list)
    assert kin.workers(TREE, ME, lambda pid: pid == WORKER) == [WORKER, GRANDCHILD, GREAT]
    monkeypatch.setattr(kin, "_of_multiprocessing", lambda: [WORKER])
    assert kin.workers(TREE, ME, lambda pid: False) == [WORKER, GRANDCHILD, GREAT]


def test_without_proc_the_workers_of_multiprocessing_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other platforms nothing else is."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(kin, "_of_multiprocessing", lambda: [WORKER])
    assert kin._children() == {}
    assert kin.workers(kin._children(), ME, lambda pid: True) == [WORKER]


class Told:
    """What was sent to whom; whoever is told to end is gone at the next look."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []

    def kill(self, pid: int, number: int) -> None:
        """As os.kill."""
        self.sent.append((pid, number))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(os, "kill", told.kill)
    monkeypatch.setattr(os, "getpid", lambda: ME)
    monkeypatch.setattr(kin, "_of_multiprocessing", list)
    monkeypatch.setattr(kin, "_is_worker", lambda pid: pid == WORKER)
    return told


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL")
def test_workers_are_killed_first_and_others_are_asked_once(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """A stopped one hears it too; and a pool that starts new workers meanwhile is seen again."""
    looks = iter([TREE, {ME: [SERVICE]}])
    monkeypatch.setattr(kin, "_children", lambda: next(looks))
    kin.end_all()
    killed = [(pid, signal.SIGKILL) for pid in (WORKER, GRANDCHILD, GREAT)]
    asked = [(pid, number) for pid in (SERVICE, ITS_OWN) for number in (signal.SIGTERM, signal.SIGCONT)]
    assert told.sent == killed + asked


def test_a_pool_cannot_go_on_starting_workers_for_ever(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """There is an end to it, which the end of this process needs."""
    new = itertools.count(WORKER)
    monkeypatch.setattr(kin, "_children", lambda: {ME: [next(new)]})
    monkeypatch.setattr(kin, "_is_worker", lambda pid: True)
    kin.end_all()
    assert len(told.sent) == 3


def test_a_platform_without_sigkill_and_sigcont_ends_workers_all_the_same(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """Windows ends a process for SIGTERM."""
    for name in ("SIGKILL", "SIGCONT"):
        monkeypatch.delattr(signal, name, raising=False)
    monkeypatch.setattr(kin, "_children", dict)
    monkeypatch.setattr(kin, "_of_multiprocessing", lambda: [WORKER])
    kin.end_all()
    assert told.sent == [(WORKER, signal.SIGTERM)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_nothing_is_known_where_proc_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container that hides it."""
    monkeypatch.setattr(kin, "_PROC", tmp_path / "none")
    assert kin._children() == {}


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_fatal_limit_leaves_nothing_alive(spawn: Spawn, method: str) -> None:
    """A worker's child that left its session too; what is no worker is asked, and may clean up."""
    trainer = spawn(FAULTS / "family.py", method)
    stuck = trainer.until("stuck now")
    assert trainer.ends() == AGAIN
    deadline = stuck + LIMIT + GRACE
    assert time.monotonic() < deadline
    assert len(trainer.known) >= 3
    while trainer.living() and time.monotonic() < deadline:
        time.sleep(POLL)
    assert not trainer.living()
    assert "service cleaned up" in trainer.output
