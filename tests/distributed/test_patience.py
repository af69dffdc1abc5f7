"""Laws of the patience at the beginning: who may still come is waited for, what is wrong is said at the limit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from fluxguard.distributed import bounded
from fluxguard.distributed.start import patience
from fluxguard.distributed.start.environment import Place
from fluxguard.distributed.start.patience import Patience, may_come, processes
from fluxguard.errors import DeadlineExceeded

BY_HAND = Place(rank=0, size=4)
LAUNCHED = Place(rank=2, size=4, local_rank=0, local_size=2, launched=True)
JOB = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a test of patience"}


@pytest.mark.parametrize(
    ("place", "missing", "seen", "expected"),
    [
        (BY_HAND, [1], {1: 7}, True),
        (BY_HAND, [1, 2], {1: 7}, False),
        (BY_HAND, [3], {}, False),
        (LAUNCHED, [0, 1], {}, True),
        (LAUNCHED, [3], {}, False),
        (LAUNCHED, [0, 3], {3: 7}, True),
    ],
)
def test_whose_process_is_seen_and_who_is_started_elsewhere_may_come(
    place: Place, missing: list[int], seen: dict[int, int], expected: bool
) -> None:
    """By hand nobody knows of other machines; a rank of our own machine without a process was never started."""
    assert may_come(missing, place, seen) is expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_a_rank_is_seen_before_it_has_imported_anything() -> None:
    """By its environment; not one of another job, and not once it is dead."""
    sleeps = [sys.executable, "-S", "-c", "input()"]
    with subprocess.Popen(sleeps, env={**os.environ, **JOB, "RANK": "1"}, stdin=subprocess.PIPE) as process:
        seen = processes(JOB)
        other = processes({**JOB, "TORCHELASTIC_RUN_ID": "another"})
        process.communicate(b"\n")
    assert seen == {1: process.pid}
    assert other == {}
    assert processes(JOB) == processes({}) == {}


def test_a_slow_start_is_waited_for_limit_by_limit_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time it is said for whom."""
    now = 1000.0
    monkeypatch.setattr(patience, "processes", lambda environment: {1: 7})
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = Patience(BY_HAND, 30.0, 70.0, now)
    now = 1030.0
    assert waits.more([1]) == 30.0
    assert waits.until == 1060.0
    assert "has waited 30 s" in caplog.text
    assert "rank 1 (process 7) is on its way" in caplog.text
    assert waits.more([2]) == 0.0
    now = 1060.0
    assert waits.more([1]) == 10.0
    now = 1069.0
    waits.complete()
    assert waits.until == 1099.0
    now = 1070.0
    assert waits.more([1]) == 0.0


def test_a_bounded_call_goes_on_while_somebody_says_so() -> None:
    more, never = iter([0.01, 0.01, 0.0]), threading.Event()
    with pytest.raises(DeadlineExceeded):
        bounded.within(0.01, "a call", never.wait, lambda: next(more))
    assert not list(more)
    never.set()
