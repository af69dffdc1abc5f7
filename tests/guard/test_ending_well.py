"""The end of real processes: what hangs there costs nothing that was trained, and losses that are lost stop it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat
from fluxguard.rundir import NEVER, RunDir
from tests.conftest import FAULTS, Spawn, Spawned

pytestmark = pytest.mark.integration

LIMIT = 1.0
Trainer = Callable[..., tuple[Spawned, RunDir]]


@pytest.fixture
def trainer(spawn: Spawn, tmp_path: Path) -> Trainer:
    """Start a fault program as a supervised trainer with short limits."""

    def start(fault: str, *args: str, **limits: Any) -> tuple[Spawned, RunDir]:
        run = RunDir(tmp_path / "out")
        run.create()
        (tmp_path / "beats").mkdir()
        run.run.write_text(json.dumps({"version": 1, "beats": str(tmp_path / "beats")}))
        run.limits.write_text(json.dumps({"version": 1, "wait": {"ending": LIMIT, "upload": LIMIT}, **limits}))
        env = {"FLUXGUARD_RUN": str(run.root), "FLUXGUARD_LIMITS": str(run.limits)}
        return spawn(FAULTS / fault, *args, env=env), run

    return start


def test_a_tracker_that_never_finishes_costs_nothing(trainer: Trainer, tmp_path: Path) -> None:
    """The weights are saved before it is asked, and the process ends well without it."""
    started, run = trainer("hanging_end.py", "tracker")
    assert started.ends() == 0
    assert (tmp_path / "weights.txt").read_text() == "saved"
    assert "finishing the trackers did not end within 1 s; everything is saved" in started.output
    assert "over" not in started.output
    assert "hanging_end.py" in run.stacks(0).read_text()
    beat = heartbeat.read(heartbeat.path_for(run.beats(), 0))
    assert beat is not None
    assert beat.phase == "ending"


def test_a_thread_that_never_ends_does_not_keep_the_process(trainer: Trainer) -> None:
    """Trackers leave threads behind, for which the interpreter would wait at its exit."""
    started, _ = trainer("hanging_end.py", "exit")
    assert started.ends() == 0
    assert "over" in started.output
    assert "the end of the process did not end within 1 s" in started.output


def test_a_process_that_goes_on_is_let_be(trainer: Trainer) -> None:
    """Whoever trains twice in one process is not ended between: the limit counts from the interpreter's own end."""
    started, _ = trainer("hanging_end.py", "again")
    assert started.ends() == 0
    assert "trained again" in started.output
    assert "fluxguard:" not in started.output


def test_a_tracker_that_fails_costs_nothing(trainer: Trainer) -> None:
    """Its error is shown, marked as one that was survived."""
    started, _ = trainer("hanging_end.py", "failing")
    assert started.ends() == 0
    assert "fluxguard| RuntimeError: the tracker's server is gone" in started.output
    assert "over" in started.output


def test_an_upload_that_never_ends_costs_nothing(trainer: Trainer) -> None:
    """The training goes on without it, and so does the end."""
    started, _ = trainer("hanging_end.py", "upload")
    assert started.ends() == 0
    for text in ("the upload did not end within 1 s", "saved", "finishing", "over"):
        assert text in started.output


def test_an_error_of_an_upload_is_the_trainers(trainer: Trainer) -> None:
    """It is raised where the trainer called it, and what was put off is still done at the exit."""
    started, _ = trainer("hanging_end.py", "refused")
    assert started.ends() == 1
    assert "ConnectionError: no" in started.output
    assert "finishing" in started.output


def test_what_was_put_off_is_done_without_an_entry_point(trainer: Trainer) -> None:
    """A trainer whose last call is missing still finishes its trackers, at the exit."""
    started, _ = trainer("hanging_end.py", "unfinished")
    assert started.ends() == 0
    assert started.output.index("over") < started.output.index("finishing")


def test_losses_that_are_no_numbers_stop_the_training(trainer: Trainer, tmp_path: Path) -> None:
    """The state before them is named, those after it are out of the way, and there is no other attempt."""
    started, run = trainer("lost_loss.py", str(tmp_path), max_bad_losses=4)
    assert started.ends() == NEVER
    words = json.loads(run.last_words(0).read_text())
    assert (words["cause"], words["verdict"], words["limit"]) == ("loss not finite", "never", 4)
    assert Path(words["file"]).name == "run-step00000004-state"
    assert "4 times in a row, from step 6 on; the last good state is" in started.output
    left = sorted(path.name for path in tmp_path.glob("run-step*"))
    assert left == [
        "run-step00000002-state",
        "run-step00000004-state",
        "run-step00000006-state.not-finite",
        "run-step00000008-state.not-finite",
    ]
    assert "trained on" not in started.output


def test_the_limit_of_lost_losses_can_be_switched_off(trainer: Trainer, tmp_path: Path) -> None:
    """Null means never."""
    started, _ = trainer("lost_loss.py", str(tmp_path), max_bad_losses=None)
    assert started.ends() == 0
    assert "trained on" in started.output
