"""Laws of rounds: an agent that starts its ranks again is not a hang, and a hang ends its ranks, never the agent."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat
from fluxguard.clock import FakeClock, SystemClock
from fluxguard.heartbeat import Beat, Heart
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, read_json, write_json
from fluxguard.supervisor import rounds
from fluxguard.supervisor.attempt import Attempt, newest_round
from fluxguard.supervisor.detecting.detectors import Symptom, detect
from fluxguard.supervisor.detecting.observation import BETWEEN, Observation
from fluxguard.supervisor.learning import NOTHING, of_history
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.rounds import ROUND, Hung, Rounds
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.sensors import Sensors
from tests.supervisor.histories import BEAT, history, look

MARK = "0b9f7c1e-0000-4000-8000-000000000001"
ATTEMPT = Attempt(uuid=MARK, number=1, start_step=0, log_from=0, at=0.0, keeper=None)


def beat(rank: int, pid: int, **more: Any) -> Beat:
    """Return a heartbeat."""
    return replace(BEAT, rank=rank, pid=pid, **more)


# Which round it is.


def test_the_ranks_that_were_started_last_are_the_newest_round() -> None:
    """A rank that left a heartbeat before they began was ended with a round before it, whatever its number."""
    old = [beat(0, 10, started=1000.0, at=50.0), beat(1, 11, started=1000.1, at=51.0)]
    new = [beat(0, 20, started=1060.0, at=64.0), beat(2, 22, started=1060.2, at=61.0)]
    assert newest_round([*old, *new], 1000.0) == new
    assert newest_round(old, 1000.0) == old
    assert newest_round([], 0.0) == []


def test_a_clock_that_was_set_hides_no_rank() -> None:
    """What cannot be told apart is all shown."""
    ranks = [beat(0, 10, started=5000.0, at=50.0), beat(1, 11, started=5000.0, at=51.0)]
    assert newest_round(ranks, 1000.0) == ranks


def test_a_round_is_told_once_and_when_it_trains() -> None:
    """The first one is no news; ranks that come one after the other are one round."""
    known = Rounds()
    assert known.seen([beat(0, 10)]) == ()
    assert known.seen([beat(0, 10), beat(1, 11)]) == ()
    assert known.seen([]) == ()
    assert known.seen([beat(0, 20, phase="load")]) == ()
    assert known.seen([beat(0, 20, phase="load"), beat(1, 21, phase="load")]) == ()
    assert known.seen([beat(0, 20), beat(1, 21)]) == (0, 1)
    assert known.seen([beat(0, 20), beat(1, 21)]) == ()
    assert known.number == 2


def test_rounds_are_counted_anew_in_another_attempt() -> None:
    """Its ranks are others anyway."""
    known = Rounds("a")
    known.seen([beat(0, 10)])
    assert known.of("a") is known
    assert known.of("b") == Rounds("b")


def test_a_round_begins_with_its_first_rank() -> None:
    """What an earlier round has written says nothing of it; without heartbeats it is the attempt that is known."""
    attempt = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=100.0, keeper=None)
    beats = [
        replace(beat(0, 10), started=500.0),
        replace(beat(1, 11), started=501.0),
        replace(beat(2, 12), started=0.0),
    ]
    assert rounds.began(attempt, beats) == 500.0
    assert rounds.began(attempt, beats[2:]) == 100.0
    assert rounds.began(attempt, []) == 100.0


# What a history makes of it.


def between(now: float) -> Observation:
    """Return a look between two rounds."""
    return replace(look(now, cpu=0.0), between=True)


def steps(pid: int, begin: float, first: int, count: int) -> list[Observation]:
    """Return looks at a rank that steps once a second, as process `pid`."""
    return [look(begin + i, beat=beat(0, pid, beats=i, step=first + i, at=begin + i), cpu=0.0) for i in range(count)]


HUNG_FOR = 290.0
LOOKS = [
    *steps(10, 0.0, 1, 10),
    between(9 + HUNG_FOR),
    between(10 + HUNG_FOR),
    *steps(20, 30 + HUNG_FOR, 5, 10),
]
"""A rank that steps, hangs, is ended, and is started again at an earlier step."""


def test_a_round_that_begins_at_an_earlier_step_is_no_symptom() -> None:
    """It does what it was started for."""
    for end in range(1, len(LOOKS) + 1):
        assert detect(history(LOOKS[:end]), Limits()) is None


def test_a_hang_that_ended_with_its_round_teaches_no_limit() -> None:
    """It was not completed; what came before and after it was."""
    taught = of_history(history([*LOOKS, look(400 + HUNG_FOR, beat=beat(0, 20, beats=99, step=99))]))
    assert max(taught.progress.values(), default=0.0) < HUNG_FOR / 2
    assert history(LOOKS).slowest_step < HUNG_FOR / 2
    assert of_history(history(LOOKS[:12])).progress.get("step", 0.0) <= 1.0
    assert of_history(history([LOOKS[0], LOOKS[-1], LOOKS[-1]])) == NOTHING


def test_an_agent_that_starts_no_new_round_is_ended_by_the_limit_of_ranks_that_find_each_other() -> None:
    """Longer than that of a step, as they wait for other machines; but not for ever."""
    limits = Limits()
    patience = limits.for_phase(BETWEEN).patience
    assert patience is not None
    looks = [*steps(10, 0.0, 1, 10), *(between(10.0 + i) for i in range(int(patience) + 3))]
    assert detect(history(looks[:-20]), limits) is None
    symptom = detect(history(looks), limits)
    assert symptom is not None
    assert (symptom.kind, symptom.phase) == ("idle", BETWEEN)


# What the sensors see of it.


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Give a run whose heartbeats lie on the disk."""
    made = RunDir(tmp_path / "out")
    made.create()
    made.kept_beats.mkdir()
    write_json(made.run, {"beats": str(made.kept_beats)})
    return made


Rank = Callable[..., subprocess.Popen[bytes]]

_RANK = """
import sys, time, uuid
from fluxguard.heartbeat import Heart
heart = Heart(sys.argv[1], rank=int(sys.argv[2]), attempt=uuid.UUID(sys.argv[3]).bytes)
heart.step, heart.phase = int(sys.argv[4]), b"step"
heart.beat()
print("beats", flush=True)
time.sleep(60)
"""


@pytest.fixture
def rank(run: RunDir) -> Iterator[Rank]:
    """Start ranks that beat once, with the environment of a rank; all are ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(number: int, step: int) -> subprocess.Popen[bytes]:
        path = heartbeat.path_for(run.kept_beats, number)
        argv = [sys.executable, "-c", _RANK, str(path), str(number), MARK, str(step)]
        env = {**os.environ, "LOCAL_RANK": str(number), "FLUXGUARD_ATTEMPT": MARK}
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == b"beats\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.integration
def test_ranks_that_are_gone_say_nothing_of_the_next_round(run: RunDir, rank: Rank) -> None:
    """Which may give them other numbers, and begins at an earlier step; between the two nobody speaks."""
    sensors = Sensors(run, ATTEMPT, SystemClock(), elastic=True)
    first = rank(0, 40)
    seen = sensors.look(sample=True)
    assert (seen.beat and seen.beat.step, seen.between) == (40, False)
    first.kill()
    first.wait()
    seen = sensors.look()
    assert (seen.beat, seen.ranks, seen.between, seen.phase) == (None, (), True, BETWEEN)
    rank(3, 30)
    sensors.look()
    seen = sensors.look()
    assert (seen.beat and (seen.beat.rank, seen.beat.step), seen.between) == ((3, 30), False)


@pytest.mark.integration
def test_only_ranks_are_ended_and_their_agent_never(run: RunDir, rank: Rank) -> None:
    """They are told by what a launcher sets for each of them; what starts meanwhile is the next round."""
    one = rank(0, 1)
    agent = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "FLUXGUARD_ATTEMPT": MARK}
    )
    try:
        assert {agent.pid, one.pid} <= {found.pid for found in ATTEMPT.processes()}
        hung = rounds.hung(ATTEMPT, symptom("idle"), ATTEMPT.beats(run))
        assert hung is not None
        assert [found.pid for found in hung.find()] == [one.pid]
        rank(0, 2)
        assert [found.pid for found in hung.find()] == [one.pid]
    finally:
        agent.kill()
        agent.wait()


# What is done about it.


def symptom(kind: str) -> Symptom:
    """Return a symptom of a step."""
    return Symptom(kind=kind, phase="step", since=1.0)


def test_an_attempt_that_has_ended_is_no_round(run: RunDir) -> None:
    """Its agent is gone; and without ranks there is nothing to end but the agent."""
    assert rounds.hung(ATTEMPT, symptom("ended"), ()) is None
    assert rounds.hung(ATTEMPT, symptom("stuck"), ()) is None


def test_a_rank_that_gave_up_by_itself_needs_nobody_to_end_it() -> None:
    """Its agent ends the others."""
    hung = rounds.hung(ATTEMPT, symptom("given up"), (beat(0, os.getpid()),))
    assert hung is not None
    assert hung.find() == []


def test_only_a_restart_becomes_a_round() -> None:
    """What would stop the run stops it, agent and all."""
    again = rounds.decided(Decision(action="restart", reason="x", after=15.0))
    assert (again.action, again.after) == (ROUND, 0.0)
    stop = Decision(action="stop", reason="x")
    assert rounds.decided(stop) is stop


def test_what_a_rank_said_in_a_round_that_is_over_is_forgotten(run: RunDir) -> None:
    """It would end the next one too."""
    write_json(run.last_words(0), {"attempt": MARK})
    run.stacks(0).write_text("")
    rounds.forget_last_words(run)
    assert run.all_last_words() == []
    assert not run.stacks(0).exists()


def test_nobody_is_asked_where_the_question_would_lie_on_a_disk(run: RunDir) -> None:
    """A guard that waits for a disk guards nothing."""
    me = Identity.of(os.getpid())
    assert me is not None
    clock = FakeClock()
    assert Hung((me,), (beat(0, me.pid),)).ask(run, "why", clock) == ()
    assert clock.monotonic() == FakeClock().monotonic()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no memory for heartbeats")
def test_a_rank_that_does_not_answer_is_waited_for_a_moment_only(tmp_path: Path) -> None:
    """Then it is ended as any process is; the question says whom it is for."""
    made = RunDir(tmp_path / "asked")
    made.create()
    folder = made.open_beats()
    try:
        me = Identity.of(os.getpid())
        assert me is not None
        clock = FakeClock()
        began = clock.monotonic()
        assert Hung((me,), (beat(0, me.pid),)).ask(made, "why", clock) == ()
        assert 1.0 < clock.monotonic() - began < 5.0
        assert (read_json(folder / "end.0") or {})["pid"] == me.pid
        Heart(heartbeat.path_for(folder, 0), rank=0, attempt=uuid.UUID(MARK).bytes)
        rounds.forget_last_words(made)
        assert not (folder / "end.0").exists()
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_an_open_wait_of_a_rank_that_is_gone_is_not_overdue() -> None:
    """Its deadline went with it."""
    waiting = beat(0, 10, wait="barrier", deadline=5.0, step=1)
    assert detect(history([look(0.0, beat=waiting), between(100.0)]), Limits()) is None
    assert math.isfinite(waiting.deadline)
