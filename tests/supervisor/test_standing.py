"""Laws of what is said of ranks that wait for each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxguard.heartbeat import Beat, Collective
from fluxguard.supervisor.detecting.standing import alone, standing
from tests.supervisor.histories import BEAT

NOW = 1000.0


def rank(number: int, *, phase: str = "step", since: float = 5.0, **more: Any) -> Beat:
    """Return the beat of a rank that began its phase, and did beat last, `since` seconds ago."""
    return replace(BEAT, rank=number, pid=100 + number, phase=phase, phase_at=NOW - since, at=NOW - since, **more)


def at(sequence: int, what: str, since: float = 60.0, **more: Any) -> Collective:
    """Return a collective that began `since` seconds ago and goes on."""
    given: dict[str, Any] = {"open": True, "begun": sequence, "depth": 1, **more}
    return Collective(sequence=sequence, kind="barrier", what=what, at=NOW - since, **given)


def done(sequence: int, what: str = "x") -> Collective:
    """Return a collective that is over."""
    return at(sequence, what, 300.0, open=False, depth=0)


FID = at(41, "fid.compute")
CASES = {
    "one is at an earlier one": (
        [rank(0, collective=FID), rank(1, collective=at(42, "end of epoch", 59.0))],
        "rank 0 is at #41 'fid.compute' since 60 s, rank 1 is at #42 'end of epoch' since 59 s",
        [0],
    ),
    "one did not come": (
        [
            rank(0, collective=at(41, "")),
            rank(1, collective=at(41, "")),
            rank(2, phase="sampling", since=300.0, collective=done(40)),
        ],
        "rank 2 did not come to #41 'barrier': it is in phase 'sampling' since 300 s",
        [2],
    ),
    "one is in a step, and waits there": (
        [rank(0, collective=at(3, "save")), rank(1, since=70.0, wait="block swap", collective=done(2))],
        "rank 1 did not come to #3 'save': it is in step 6 since 70 s, where it waits for block swap",
        [1],
    ),
    "one has noted nothing yet": (
        [rank(0, collective=at(1, "caches")), rank(1, phase="load", since=90.0)],
        "rank 1 did not come to #1 'caches': it is in phase 'load' since 90 s",
        [1],
    ),
    "two are late, the one that is further behind first": (
        [
            rank(0, phase="saving", collective=done(40)),
            rank(1, phase="sampling", collective=done(39)),
            rank(2, collective=at(41, "end of epoch")),
        ],
        "rank 1 did not come to #41 'end of epoch': it is in phase 'sampling' since 5 s, "
        "rank 0 did not come to #41 'end of epoch': it is in phase 'saving' since 5 s",
        [1, 0],
    ),
    "many wait where they should, and one elsewhere": (
        [rank(0, collective=FID), *(rank(n, collective=at(42, "end of epoch", 50.0 + n)) for n in (1, 2, 3))],
        "rank 0 is at #41 'fid.compute' since 60 s, ranks 1, 2 and 3 are at #42 'end of epoch' since 53 s",
        [0],
    ),
    "they do not agree": (
        [rank(0, collective=FID), rank(1, collective=at(41, "end of epoch", 59.0))],
        "the ranks do not agree, rank 1 is at #41 'end of epoch' since 59 s, rank 0 is at #41 'fid.compute' since 60 s",
        [],
    ),
    "all came": (
        [rank(0, collective=FID), rank(1, collective=FID)],
        "all came, and none goes on, ranks 0 and 1 are at #41 'fid.compute' since 60 s",
        [],
    ),
    "one left with an error": (
        [rank(0, collective=FID), rank(1, collective=at(41, "fid.compute", open=False, failed=True, depth=0))],
        "rank 1 left #41 'fid.compute' with an error: it is in step 6 since 5 s",
        [1],
    ),
    "one is further within the same": (
        [
            rank(0, collective=at(42, "sync", begun=42, depth=2)),
            rank(1, collective=at(41, "fid.compute", begun=42, depth=1)),
        ],
        "rank 0 is at #42 'sync' since 60 s, rank 1 is at #41 'fid.compute' since 60 s",
        [0],
    ),
    "one is past it, the other is still in it": (
        [rank(0, collective=FID), rank(1, since=60.0, collective=done(41))],
        "rank 0 is at #41 'fid.compute' since 60 s",
        [0],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_waits_where_and_what_the_late_ones_do(case: str) -> None:
    """The late ones come first, and by name."""
    beats, words, late = CASES[case]
    found = standing(beats, NOW)
    assert found is not None
    assert (found.words, [beat.rank for beat in found.late]) == (words, late)


@pytest.mark.parametrize(
    "beats",
    [
        [],
        [rank(0, collective=FID)],
        [rank(0), rank(1)],
        [rank(0, collective=done(41)), rank(1, collective=done(40))],
    ],
)
def test_nothing_is_said_where_nobody_waits(beats: list[Beat]) -> None:
    """Ranks that go on are never exactly at the same place."""
    assert standing(beats, NOW) is None


GONE = {
    "while the others wait": (
        [rank(0, collective=at(41, "epoch")), rank(1, phase="latent cache", since=80.0, collective=done(40))],
        "rank 1 is dead and did not come to #41 'epoch': it was in phase 'latent cache' since 80 s",
    ),
    "in the same collective": (
        [rank(0, collective=at(41, "epoch")), rank(1, collective=at(41, "epoch", 61.0))],
        "rank 1 is dead: it was at #41 'epoch' since 61 s, rank 0 is at #41 'epoch' since 60 s",
    ),
    "further than the others": (
        [rank(0, collective=done(40)), rank(1, collective=at(41, "epoch", 61.0))],
        "rank 1 is dead: it was at #41 'epoch' since 61 s",
    ),
    "without any collective": ([rank(0), rank(1, since=80.0)], "rank 1 is dead: it was in step 6 since 80 s"),
}


@pytest.mark.parametrize("case", GONE)
def test_a_rank_that_died_is_said_to_be_dead(case: str) -> None:
    """And what it did last."""
    beats, words = GONE[case]
    found = standing(beats, NOW, dead=[101])
    assert found is not None
    assert words in found.words
    assert [beat.rank for beat in found.late] == [1]


def test_a_rank_that_is_stopped_is_said_to_be_stopped() -> None:
    """It is not where it stands that keeps it."""
    beats = [rank(0, collective=at(41, "epoch")), rank(1, since=80.0, collective=done(40))]
    found = standing(beats, NOW, stopped=[101])
    assert found is not None
    assert found.words == "rank 1 did not come to #41 'epoch': it is stopped, in step 6 since 80 s"
    alone = standing([rank(0), rank(1, since=80.0)], NOW, stopped=[101])
    assert alone is not None
    assert alone.words == "rank 1 is stopped, in step 6 since 80 s"


def test_the_longest_wait_is_known() -> None:
    """Whoever looks at a run that goes on says nothing of one that has only begun."""
    found = standing([rank(0, collective=FID), rank(1, collective=at(42, "x", 10.0))], NOW)
    assert found is not None
    assert found.seconds == 10.0  # of those that wait for another; the late one is busy


def test_a_rank_alone_on_its_machine_is_told_too() -> None:
    """Of several machines each knows its own ranks only: it is stopped, or it waits, or there is nothing to say."""
    stopped = alone(rank(1, since=70.0), NOW, stopped={101})
    assert stopped is not None
    assert (stopped.words, [beat.rank for beat in stopped.late]) == ("rank 1 is stopped, in step 6 since 70 s", [1])
    waits = alone(rank(0, collective=at(41, "end of epoch")), NOW)
    assert waits is not None
    assert (waits.words, waits.seconds) == ("rank 0 is at #41 'end of epoch' since 60 s", 60.0)
    assert alone(rank(0, collective=done(41)), NOW) is None
