"""Laws of states that verify and that the trainer cannot go on from: set aside, never lost, never in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.launch.command import Refusal
from fluxguard.rundir import RunDir
from fluxguard.supervisor import distrust, record, restart
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.causes.signatures import INPUT
from fluxguard.supervisor.checkpoints import holding, states
from fluxguard.supervisor.checkpoints.states import Sealed
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.trainee import Trainee
from tests.supervisor.test_states import PLAN, state

BROKEN = Diagnosis(cause="broken state", words="It is broken.")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with states of steps 4 and 8."""
    made = RunDir(tmp_path)
    made.create()
    for step in (4, 8):
        state(made, f"x-step{step:08d}", 1, step)
    states.seal(made, PLAN, since=0)
    return made


@pytest.fixture
def book(run: RunDir) -> Ledger:
    """Its ledger."""
    made = Ledger(run.ledger, FakeClock())
    made.add("job", hardened=False, weights="w")
    return made


def fails_from(run: RunDir, book: Ledger, step: int) -> None:
    """Let an attempt die while it loads the state of a step."""
    mark, folder = f"attempt-{len(book.events)}", run.states / f"step-{step:08d}"
    book.add("attempt", attempt=mark, number=1, start_step=step, state=str(folder), log_from=0)
    distrust.note(book, mark, distrust.why(BROKEN, phase="load", start_step=step, step=step))


def chosen(run: RunDir, book: Ledger) -> Restart:
    """Return where the next attempt starts, as a supervisor that has just started finds it."""
    trainee = Trainee(
        argv=("begin",), resumed=lambda start, _: ("go on from", start.state.name), masked=lambda words: words,
        secrets=frozenset(), cwd=run.output_dir, env={}, weights=None, hardened=False, accumulation=1, own_cadence=True,
    )  # fmt: skip
    events = Ledger(run.ledger, FakeClock()).events
    return restart.choose(run, trainee, PLAN, Sealed(), distrust.known(events))


def test_the_state_before_is_used_and_the_reason_is_told(run: RunDir, book: Ledger) -> None:
    """Also by a supervisor that comes later and knows the ledger only."""
    assert chosen(run, book).step == 8
    fails_from(run, book, 8)
    found = chosen(run, book)
    assert (found.step, found.argv) == (4, ("go on from", "step-00000004"))
    assert found.notes == ("the trainer could not go on from the state of step 8: It is broken.",)
    assert [path.name for path in run.aside.iterdir()] == ["step-00000008.0"]
    held = holding.look(run.output_dir, now=1e12, verify=True)
    assert [one.reason for one in held.states if one.where == holding.ASIDE] == [found.notes[0]]


def test_a_state_of_the_same_step_that_is_saved_later_is_another_one(run: RunDir, book: Ledger) -> None:
    """What is distrusted are bytes on the disk, not a step."""
    fails_from(run, book, 8)
    assert chosen(run, book).step == 4
    state(run, "again", 1, 8)
    states.seal(run, PLAN, since=0)
    assert chosen(run, book).step == 8


def test_a_supervisor_that_dies_before_it_sets_the_state_aside_has_told_the_next(run: RunDir, book: Ledger) -> None:
    """The ledger knows it first; and what cannot be moved is passed over each time."""
    fails_from(run, book, 8)
    run.aside.write_text("no folder")
    assert [chosen(run, book).step for _ in range(2)] == [4, 4]


def test_one_broken_state_that_was_the_only_one_is_trained_anew_and_kept(run: RunDir, book: Ledger) -> None:
    """The loss is told, and the state is not deleted."""
    states._set_aside(run, run.states / "step-00000008")
    fails_from(run, book, 4)
    found = chosen(run, book)
    assert (found.state, found.argv) == (None, ("begin",))
    assert "could not go on from the state of step 4" in found.notes[0]
    assert len(list(run.aside.iterdir())) == 2


def test_when_no_state_can_be_gone_on_from_the_run_stops_and_keeps_them_all(run: RunDir, book: Ledger) -> None:
    """Then they are probably not what is broken: nothing is trained again, and whoever mends it loses nothing."""
    fails_from(run, book, 8)
    assert chosen(run, book).step == 4
    fails_from(run, book, 4)
    found = chosen(run, book)
    assert isinstance(found.argv, Refusal)
    assert "from any of the 2 states" in found.argv.reason
    said = record.stopped(run, book, PLAN, found.argv.reason, refused=True)
    assert said.endswith("The newest state is that of step 8.")
    assert chosen(run, book).step == 8
    assert list(run.aside.iterdir()) == []


@pytest.mark.parametrize(
    ("cause", "phase", "step", "distrusted"),
    [
        (BROKEN, "load", 8, True),
        (BROKEN, "step", 8, True),
        (BROKEN, "step", 9, False),  # it had loaded the state
        (Diagnosis(cause="error in the trainer (TypeError)", words="w"), "resume", 8, True),
        (Diagnosis(cause="error in the trainer (TypeError)", words="w"), "load", 8, False),
        (Diagnosis(cause="file read", words="w"), "resume", 8, False),
        (Diagnosis(cause="missing file", words="w", origin=INPUT, again=False), "resume", 8, False),
        (Diagnosis(cause="loading the state", words="w"), "", 8, False),  # it was ended: the disk may be slow
    ],
)
def test_only_a_death_while_loading_speaks_against_a_state(
    cause: Diagnosis, phase: str, step: int, distrusted: bool
) -> None:
    """By the trainer's own words, or in the phase that loads nothing else."""
    assert bool(distrust.why(cause, phase=phase, start_step=8, step=step)) == distrusted


def test_an_attempt_from_the_beginning_speaks_against_no_state(run: RunDir, book: Ledger) -> None:
    """There is none that it loaded."""
    book.add("attempt", attempt="a", number=1, start_step=0, state=None, log_from=0)
    distrust.note(book, "a", "why")
    assert distrust.known(book.events) == {}
