"""Laws of what a run with several ranks shows and is told when one of them does not come."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from fluxguard.heartbeat import Beat, Collective
from fluxguard.limits import Limits
from fluxguard.supervisor.causes.diagnosis import Evidence, diagnose
from fluxguard.supervisor.detecting.detectors import Symptom, detect
from fluxguard.supervisor.detecting.observation import Exit, History, Observation
from fluxguard.supervisor.sensing import fates
from fluxguard.supervisor.sensing.processes import Usage
from fluxguard.supervisor.showing import together
from tests.conftest import Spawn, Spawned
from tests.supervisor.histories import BEAT, history, look

LIMITS = Limits()
BOTH = ((100, "python", "sleeping"), (101, "python", "sleeping"))
LATE = "rank 1 did not come to #41 'end of epoch': it is in phase 'sampling' since 400 s"


def waiting(sequence: int = 41, at: float = 10.0) -> Collective:
    """Return a barrier that goes on."""
    return Collective(sequence=sequence, kind="barrier", what="end of epoch", at=at, open=True, begun=sequence, depth=1)


def rank(number: int, **more: Any) -> Beat:
    """Return the beat of a rank, written ten seconds after the start."""
    return replace(BEAT, rank=number, pid=100 + number, at=10.0, phase_at=10.0, **more)


def silent(seconds: float, *ranks: Beat, states: tuple[tuple[int, str, str], ...] = BOTH) -> History:
    """Return what looks at ranks add up to of which nothing is seen for that long."""
    usage = Usage(1.0, 0, states)
    looks = [replace(look(now, beat=ranks[0]), ranks=ranks, usage=usage) for now in (10.0, 20.0, 10.0 + seconds)]
    return history(looks)


def found(seen: History) -> Symptom:
    """Return the symptom of a history."""
    symptom = detect(seen, LIMITS)
    assert symptom is not None
    return symptom


def test_a_stall_says_which_rank_is_waited_for() -> None:
    """In its signs too, once."""
    symptom = found(silent(1000.0, rank(0, collective=waiting()), rank(1, phase="sampling")))
    words = LATE.replace("400", "1000")
    assert (symptom.kind, symptom.ranks, symptom.late) == ("idle", words, (101,))
    assert [sign for sign in symptom.signs if "rank 1" in sign] == [words]


def test_who_waits_is_as_patient_as_whom_it_waits_for() -> None:
    """A rank that samples may take longer than a step."""
    ranks = rank(0, collective=waiting()), rank(1, phase="sampling")
    assert detect(silent(800.0, *ranks), LIMITS) is None
    assert detect(silent(800.0, *(replace(one, phase="step") for one in ranks)), LIMITS) is not None


@pytest.mark.parametrize("phase", ["saving", "sampling", "validation", "upload"])
def test_a_rank_that_works_for_all_is_not_called_late_while_nothing_hangs(phase: str) -> None:
    """Rank 0 saves or samples for minutes, the others wait on purpose: that is how a training goes on."""
    me = replace(rank(0, phase=phase), pid=os.getpid())
    waits = replace(rank(1, collective=waiting()), pid=os.getppid())
    assert detect(silent(590.0, me, waits, states=()), LIMITS) is None
    assert together.words([me, waits], 600.0) == (
        f"rank 0 has not come yet to #41 'end of epoch': it is in phase '{phase}' since 590 s"
    )
    assert together.words([replace(me, phase="load"), waits], 600.0).startswith("rank 0 did not come to #41")


def test_a_rank_that_is_gone_is_dead_and_nobody_waits_longer_for_it() -> None:
    """Whatever its phase allowed."""
    ranks = rank(0, collective=waiting()), rank(1, phase="sampling")
    symptom = found(silent(800.0, *ranks, states=BOTH[:1]))
    assert symptom.ranks.startswith("rank 1 is dead and did not come to #41")
    zombie = found(silent(800.0, *ranks, states=(BOTH[0], (101, "python", "zombie"))))
    assert zombie.ranks.startswith("rank 1 is dead")


def test_processes_that_cannot_be_seen_are_not_dead() -> None:
    """Nor those that a look saw before they began."""
    assert "dead" not in found(silent(2000.0, rank(0, collective=waiting()), rank(1), states=())).ranks


def test_when_all_are_ended_none_is_said_to_be_dead() -> None:
    """The end of one rank is that of all."""
    seen = silent(60.0, rank(0, collective=waiting()), rank(1, phase="sampling"), states=BOTH[:1])
    for ending in ({"exit": Exit(code=1)}, {"spoken": True}):
        last: Observation = replace(seen.last, usage=None, **ending)
        assert found(seen.then(last)).ranks == LATE.replace("400", "60")


def test_a_collective_that_begins_is_a_sign_of_life() -> None:
    """As a beat is."""
    seen = silent(290.0, rank(0, collective=waiting()), rank(1, collective=waiting()))
    moved = rank(0, collective=waiting(42)), rank(1, collective=waiting(42))
    after = seen.then(replace(look(310.0, beat=moved[0]), ranks=moved))
    assert after.sign_at == 310.0
    assert detect(after, LIMITS) is None


IDLE = Symptom(kind="idle", phase="step", since=400.0, limit=300.0, ranks=LATE, late=(101,), signs=(LATE,))
WAITS = 'Thread 0x1 (idle): "MainThread"\n    _meet (fluxguard/guard/barrier.py:90)\n'
SAMPLES = 'Thread 0x1 (idle): "MainThread"\n    sample_image_inference (library/flux_train_utils.py:90)\n'


def test_the_cause_names_the_late_rank_first() -> None:
    """Then what is known of it."""
    said = diagnose(replace(IDLE, what="barrier"), Evidence(stacks={100: WAITS}))
    assert said.cause == "barrier"
    assert said.words.startswith("R" + LATE[1:] + ". ")
    assert said.proof[0] == LATE
    assert said.proof.count(LATE) == 1


def test_what_the_late_rank_does_is_the_cause() -> None:
    """Not that the others wait for it."""
    said = diagnose(replace(IDLE, what="barrier"), Evidence(stacks={100: WAITS, 101: SAMPLES}))
    assert said.cause == "sampling"
    assert said.words.startswith("Rank 1 did not come")


def test_flight_recorders_speak_where_the_heartbeats_do_not() -> None:
    """Of a trainer that fluxguard does not know, say."""
    lines = [
        "[rank0]:[E1218 20:27:21 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: x"
    ]
    told = "rank 1 did not come to #42 all_gather"
    ended = Symptom(kind="ended", phase="step", since=0.2)
    said = diagnose(ended, Evidence(exit=Exit(code=1), lines=lines, collectives=(told,)))
    assert said.cause == "collective timed out"
    assert said.words.startswith("Rank 1 did not come to #42 all_gather. ")
    assert said.proof[0] == told


def test_an_end_that_has_nothing_to_do_with_others_is_told_as_ever() -> None:
    """Although others waited when it came."""
    ended = replace(IDLE, kind="ended")
    said = diagnose(ended, Evidence(exit=Exit(code=1), lines=["ValueError: nope"], collectives=("rank 1 x",)))
    assert (
        said.words == diagnose(replace(ended, ranks=""), Evidence(exit=Exit(code=1), lines=["ValueError: nope"])).words
    )


REPORT = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : {other} (pid: 13111)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {first} (pid: 13112)
""".strip().split("\n")


@pytest.mark.parametrize(
    ("first", "other", "cause"),
    [
        ("1", "-15", "error in the trainer (RuntimeError)"),
        ("-9", "-15", "killed from outside (SIGKILL)"),
        ("-11", "1", "crashed (SIGSEGV)"),
    ],
)
def test_the_rank_that_ended_first_counts(first: str, other: str, cause: str) -> None:
    """And is named: the launcher itself has ended the others."""
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "RuntimeError: nobody knows it",
    ]
    shown = [line.format(first=first, other=other) for line in REPORT]
    said = diagnose(
        Symptom(kind="ended", phase="step", since=0.2),
        Evidence(exit=Exit(code=1), lines=[*(lines if first == "1" else []), *shown]),
    )
    assert said.cause == cause
    assert said.words.startswith("Rank 1 ended first. ")


def test_short_waits_are_not_shown() -> None:
    """They are how a training goes on."""
    me = replace(rank(0, collective=waiting()), pid=os.getpid())
    other = replace(rank(1), pid=os.getpid())
    assert together.words([me, other], 12.0) == ""
    assert together.words([me, other], 16.0).startswith("rank 1 did not come to #41 'end of epoch'")
    assert together.words([me], 400.0) == ""


@pytest.mark.integration
def test_what_became_of_processes_is_seen(spawn: Spawn) -> None:
    """One that sleeps lives, one that was stopped is stopped, one that was killed is gone."""

    def seen(one: Spawned) -> bool:
        return any(one.pid in pids for pids in fates.of([replace(BEAT, pid=one.pid)]))

    ranks = [spawn("-c", "import time; time.sleep(60)") for _ in range(3)]
    os.kill(ranks[1].pid, signal.SIGSTOP)
    os.kill(ranks[2].pid, signal.SIGKILL)
    ranks[0].when(lambda: seen(ranks[1]) and seen(ranks[2]))
    beats = [replace(BEAT, rank=n, pid=one.pid) for n, one in enumerate(ranks)]
    assert fates.of(beats) == (frozenset({ranks[2].pid}), frozenset({ranks[1].pid}))
    reused = replace(BEAT, pid=ranks[0].pid, started=1.0)
    assert fates.of([reused]) == (frozenset({ranks[0].pid}), frozenset())
