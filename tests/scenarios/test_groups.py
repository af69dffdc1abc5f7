"""One scenario for each group of what users meet: it is played, and ends as its row in docs/what-goes-wrong.md says."""

from __future__ import annotations

import os
import re
import signal
import zipfile
from collections.abc import Callable
from typing import TypeVar

import pytest

from fluxguard.supervisor import attempt as attempts
from tests.scenarios import rows
from tests.scenarios.stage import LONGEST, PATIENCE, STEPS, Stage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3 * LONGEST * PATIENCE)]

SetStage = Callable[..., Stage]
Test = TypeVar("Test", bound=Callable[..., None])
GROUPS = {"A1", "A2", "A3", "A4", "B1", "B2", "B3", "C1", "C2", "D1", "D2", "D3", "D4", "E", "F", "G"}
KILLED = "killed from outside (SIGKILL)"
PLAYED: dict[str, str] = {}


def group(name: str) -> Callable[[Test], Test]:
    """Register the scenario of a group."""

    def keep(test: Test) -> Test:
        assert name not in PLAYED
        PLAYED[name] = test.__name__
        return test

    return keep


def row(name: str) -> rows.Row:
    """Return the row of a group."""
    return rows.read(rows.PAGE.read_text("utf-8"))[name]


def ends_as_promised(name: str, played: Stage, *, besides: str = "") -> None:
    """Assert that a run is in the state of its row, by its cause alone but for one that the scenario itself needs."""
    promised, seen = row(name), played.status
    assert seen.state == promised.ends, f"{seen.reason}\n{played.said}"
    causes = {str(one["cause"]) for one in seen.incidents} - {besides}
    assert causes == {promised.cause} - {rows.NO_CAUSE, besides}, f"{seen.reason}\n{played.said}"
    if promised.ends == "finished":
        assert played.embodied() == [float(step) for step in range(STEPS)]
    assert seen.reason
    assert all(event.values["words"] and event.values["advice"] for event in played.events if event.kind == "incident")
    played.until(lambda: not played.living())  # the keeper goes a moment later


def kill_all(played: Stage) -> None:
    """End supervisor and trainer."""
    for supervisor in played.supervisors:
        supervisor.kill()
        supervisor.wait()
    attempt = attempts.last(played.run, played.events)
    assert attempt is not None
    for identity in attempt.processes():
        os.kill(identity.pid, signal.SIGKILL)
    played.until(lambda: not played.living())


def test_every_group_is_played_and_promised() -> None:
    """No group without a scenario, no row without a group."""
    promised = rows.read(rows.PAGE.read_text("utf-8"))
    assert set(PLAYED) == set(promised) == GROUPS
    assert {one.ends for one in promised.values()} <= {"finished", "stopped", "refused"}


@group("A1")
def test_stuck_before_the_first_step(stage: SetStage) -> None:
    """Nothing moves while latents are cached: ended by the patience of that phase, and trained in a second attempt."""
    played = stage("waits_for_nothing")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("A1", played)


@group("A2")
def test_stuck_with_everything_busy(stage: SetStage) -> None:
    """The first step computes for ever: ended by its ceiling."""
    played = stage("spins")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("A2", played)


@group("A3")
def test_a_loader_worker_that_delivers_nothing(stage: SetStage) -> None:
    """A stopped worker, for which an unhardened trainer waits for ever."""
    played = stage("loses_its_worker")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("A3", played)


@group("A4")
def test_a_rank_that_does_not_come(stage: SetStage) -> None:
    """The others wait for it where all must meet."""
    played = stage("waits_for_a_rank")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("A4", played)


@group("B1")
def test_system_memory_is_full(stage: SetStage) -> None:
    """Stopped at once: another attempt would need as much."""
    played = stage("runs_out_of_memory", once=False)
    assert played.to_the_end() == 1, played.said
    ends_as_promised("B1", played)


@group("B2")
def test_the_memory_of_the_gpu_is_full(stage: SetStage) -> None:
    """Each time at the same step: whatever is tried, it ends with advice."""
    played = stage("runs_out_of_gpu_memory", once=False)
    assert played.to_the_end() == 1, played.said
    ends_as_promised("B2", played)


@group("B3")
def test_an_argument_that_the_trainer_does_not_know(stage: SetStage) -> None:
    """Stopped after one attempt, with the trainer's own words."""
    played = stage("", "--no_such_flag")
    assert played.to_the_end() == 1, played.said
    ends_as_promised("B3", played)
    assert "no_such_flag" in played.status.reason


@group("C1")
def test_the_terminal_that_started_it_is_closed(stage: SetStage) -> None:
    """Another supervisor takes over, and the run goes on."""
    played = stage()
    supervisor = played.supervise()
    played.until(lambda: played.states())
    os.killpg(supervisor.pid, signal.SIGHUP)
    assert supervisor.wait(LONGEST) == 0
    played.until(lambda: played.status.state == "finished")
    ends_as_promised("C1", played)
    assert played.status.attempts == 1


@group("C2")
def test_a_stop_that_the_trainer_does_not_heed(stage: SetStage) -> None:
    """It ignores SIGTERM and has a stopped child in a session of its own: all of it ends."""
    played = stage("ignores_every_request")
    supervisor = played.supervise()
    played.until(lambda: played.states())
    assert len(played.living()) > 1
    played.stop()
    assert supervisor.wait(LONGEST) == 1
    ends_as_promised("C2", played)


@group("D1")
def test_a_state_whose_random_states_cannot_be_read(stage: SetStage) -> None:
    """KeyError: 'step' upstream; here the state before it is used."""
    played = stage("cannot_read_random_states", once=False)
    played.supervise()
    played.until(lambda: len(played.states()) > 1)
    kill_all(played)
    with zipfile.ZipFile(played.states()[-1] / "random_states_0.pkl", "w") as archive:
        archive.writestr("random_states_0/data.pkl", b"\x80\x02X\x09\0\0\0no pickle.")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("D1", played, besides=KILLED)


@group("D2")
def test_resumed_again_and_again(stage: SetStage) -> None:
    """Upstream counts one process only; here each planned step is trained once."""
    played = stage("dies_at_random", once=False)
    assert played.to_the_end() == 0, played.said
    ends_as_promised("D2", played)
    assert played.status.attempts > 3


@group("D3")
def test_a_state_of_the_users_own_to_resume(stage: SetStage) -> None:
    """Said before anything starts: the run resumes from its own verified states."""
    played = stage("", "--resume", "nowhere")
    assert (played.to_the_end(), row("D3").ends) == (2, "refused"), played.said
    assert re.search(r"--resume\b", played.said)
    assert played.events == []


@group("D4")
def test_a_state_that_is_torn(stage: SetStage) -> None:
    """As a full disk or a lost connection leaves it: the one before is used."""
    played = stage()
    played.supervise()
    played.until(lambda: len(played.states()) > 1)
    kill_all(played)
    torn = played.states()[-1] / "optimizer.bin"
    torn.write_bytes(torn.read_bytes()[:900])
    assert played.to_the_end() == 0, played.said
    ends_as_promised("D4", played, besides=KILLED)


@group("E")
def test_a_download_that_stops(stage: SetStage) -> None:
    """At forty per cent, for ever: ended by the patience of loading, and begun again."""
    played = stage("downloads_for_ever")
    assert played.to_the_end() == 0, played.said
    ends_as_promised("E", played)


@group("F")
def test_a_loss_that_is_no_number(stage: SetStage) -> None:
    """Weights that hold no numbers are no success."""
    played = stage("loses_its_mind", once=False)
    assert played.to_the_end() == 1, played.said
    ends_as_promised("F", played)


@group("G")
def test_caching_that_is_slow(stage: SetStage) -> None:
    """Longer altogether than any patience, but image after image: nothing is ended."""
    played = stage("caches_slowly", once=False)
    assert played.to_the_end() == 0, played.said
    ends_as_promised("G", played)
    assert played.status.attempts == 1
