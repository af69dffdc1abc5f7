"""Laws of what should not lie in an output folder: a clear message, and no harm to a training by our own failure."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import admission, finish, ledger, stopping
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.finish import Finish
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.showing import status
from tests.supervisor.conftest import FakeRun
from tests.test_cli import Command, assert_one_line

MakeRun = Callable[..., FakeRun]
ALL = [float(step) for step in range(40)]
ATTEMPT = Attempt(uuid="0" * 32, number=1, start_step=0, log_from=0, at=0.0, keeper=None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Give an empty run directory."""
    made = RunDir(tmp_path / "out")
    made.create()
    return made


@pytest.mark.parametrize("name", ["job", "ledger"])
def test_files_of_a_newer_fluxguard_are_not_touched(run: RunDir, name: str) -> None:
    """The file and both versions are named; nothing is read as if it were not there."""
    path = getattr(run, name)
    path.write_text(json.dumps({"version": 2, "event": "attempt", "at": 1.0}) + "\n")
    with pytest.raises(InputError, match=rf"{path.name}: was written by a newer fluxguard \(version 2"):
        admission.check(run)


def test_unreadable_lines_are_counted_and_passed_over(run: RunDir) -> None:
    """What stands around them counts."""
    made = Ledger(run.ledger, SystemClock())
    made.add("job", hardened=False, weights="w")
    with run.ledger.open("ab") as file:
        file.write(b"\xff\xfe not ours\n" + json.dumps({"version": 1, "event": "attempt", "at": 1}).encode() + b"\n")
    made.add("stopped", reason="r", applied_steps=3)
    assert [event.kind for event in ledger.read(run.ledger)] == ["job", "stopped"]
    assert admission.check(run) == [f"2 lines of {run.ledger} cannot be read and are passed over"]


def test_a_line_that_its_writer_died_over_is_nothing_to_speak_of(run: RunDir) -> None:
    """A power loss leaves one; the next event does not grow together with it."""
    made = Ledger(run.ledger, SystemClock())
    made.add("job", hardened=False, weights="w")
    with run.ledger.open("ab") as file:
        file.write(b'{"version": 1, "event": "att')
    assert admission.check(run) == []
    made.add("stopped", reason="r", applied_steps=3)
    assert [event.kind for event in ledger.read(run.ledger)] == ["job", "stopped"]


def test_a_job_that_cannot_be_read_is_said(run: RunDir) -> None:
    """It is written anew."""
    run.job.write_text("{")
    assert admission.check(run) == [f"{run.job} cannot be read; it is written anew"]


def test_a_copied_folder_stops_nothing_of_the_one_it_was_copied_from(run: RunDir, tmp_path: Path) -> None:
    """What it says of processes is about the other one."""
    made = Ledger(run.ledger, SystemClock())
    made.add("job", hardened=False, weights="w")
    write_json(run.job, {"output_dir": str(run.output_dir)})
    shutil.copytree(run.output_dir, tmp_path / "copy")
    with pytest.raises(InputError, match="is a copy of"):
        stopping.stop(RunDir(tmp_path / "copy"), SystemClock())
    (tmp_path / "link").symlink_to(run.output_dir)
    admission.refuse_copy(RunDir(tmp_path / "link"))


def weights(path: Path, at: float) -> None:
    """Write small final weights with a time of their own."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    os.utime(path, (at, at))


def test_a_clock_that_was_set_back_makes_no_new_weights_old(fake: MakeRun) -> None:
    """They are others than lay there when the attempt was started; those that lay there already are no success."""
    trainee = fake().supervision().trainee
    assert trainee.weights is not None
    weights(trainee.weights, at=2000.0)
    before = replace(ATTEMPT, at=5000.0, weights_before=finish.stamp(trainee.weights))
    assert not isinstance(finish.judge(trainee, Plan(), before, 40), Finish)
    weights(trainee.weights, at=4000.0)
    assert isinstance(finish.judge(trainee, Plan(), before, 40), Finish)
    none_before = replace(ATTEMPT, at=5000.0, weights_before=[])
    assert isinstance(finish.judge(trainee, Plan(), none_before, 40), Finish)
    of_an_older_ledger = replace(ATTEMPT, at=5000.0)
    assert not isinstance(finish.judge(trainee, Plan(), of_an_older_ledger, 40), Finish)


class SetBack(SystemClock):
    """A clock on the wall that somebody sets back by an hour while it is looked at."""

    def wall(self) -> float:
        """Return the time of day."""
        self.looked = getattr(self, "looked", 0) + 1
        return super().wall() - (3600.0 if self.looked > 4 else 0.0)


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_a_run_ends_right_although_the_clock_is_set_back(fake: MakeRun) -> None:
    """The ledger is in order, not in time."""
    run = fake()
    supervision = run.supervision()
    supervision.clock = supervision.ledger._clock = SetBack()
    run.fault("hang", 10)
    assert supervision.to_the_end().finished
    assert run.embodied() == ALL


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_foreign_files_in_the_run_directory_are_left_alone(fake: MakeRun) -> None:
    """Whatever they are called."""
    run = fake()
    root = run.run.root
    for name in (
        "notes.txt",
        "exit.none.json",
        "last-words.x.json",
        "states/step-abc",
        "incidents/readme",
        "keeper.json",
    ):
        (root / name).write_text("mine")
    (root / "states" / "step-00000099").mkdir()
    (root / "healed.0.jsonl").mkdir()
    run.fault("raise", 6)
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL
    assert (root / "notes.txt").read_text() == (root / "incidents" / "readme").read_text() == "mine"


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_an_output_folder_that_is_removed_harms_nobody_but_itself(fake: MakeRun) -> None:
    """The trainer goes on to its end; then it is said what happened, for its steps could not be counted any more."""
    run = fake(step=0.05)
    supervision = run.supervision()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not list(run.run.output_dir.glob("*-state")) and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = {one.pid for one in attempts.last(run.run, supervision.ledger.events).processes()}  # type: ignore[union-attr]
    shutil.rmtree(run.run.output_dir)
    time.sleep(0.3)
    assert {one.pid for one in attempts.last(run.run, supervision.ledger.events).processes()} == pids  # type: ignore[union-attr]
    thread.join(60)
    assert run.embodied() == ALL
    assert not outcomes[0].finished
    assert "was removed, or its disk went away" in outcomes[0].reason


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_a_trainer_that_dies_with_its_folder_is_explained(fake: MakeRun) -> None:
    """Not restarted into nothing."""
    run = fake(step=0.05)
    supervision = run.supervision()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not (last := attempts.last(run.run, supervision.ledger.events)) or not last.processes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.run.output_dir.rename(run.run.output_dir.with_name("away"))
    for identity in last.processes():
        os.kill(identity.pid, 9)
    thread.join(60)
    assert not outcomes[0].finished
    assert "was removed, or its disk went away" in outcomes[0].reason
    assert not run.run.output_dir.exists()


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a small disk there, where that is allowed."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if not sys.platform.startswith("linux") or subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("mounts a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_a_full_disk_is_explained_and_afterwards_the_run_goes_on(fake: MakeRun, tmp_path: Path) -> None:
    """The event that says so is written although there is no room."""
    run = fake(step=0.05)
    with small_disk(tmp_path / "small", "1m"):
        run.run = RunDir(tmp_path / "small")
        run.run.create()
        write_json(run.run.run, {"beats": str(tmp_path / "beats")})
        supervision = run.supervision()
        fill = run.run.output_dir / "fill"

        def full(event: ledger.Event) -> None:
            if event.kind == "plan":
                with contextlib.suppress(OSError), fill.open("wb") as file:
                    while True:
                        file.write(bytes(1000))
                        file.flush()

        supervision.ledger._subscribers.append(full)
        outcome = supervision.to_the_end()
        seen = status.read(run.run)
        assert seen is not None
        assert (outcome.finished, seen.state, seen.incidents[-1]["cause"]) == (False, "stopped", "disk full")
        fill.unlink()
        assert run.supervision().to_the_end().finished
        assert run.embodied() == ALL


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    """One line, exit code 2; nothing was started."""
    command = Command(tmp_path)
    with small_disk(command.out, "1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(command.out)], check=True)
        assert_one_line(command.run(*command.training()), str(command.out))


@pytest.mark.integration
@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_ledger_that_cannot_be_written_any_more_ends_no_training(
    fake: MakeRun, monkeypatch: pytest.MonkeyPatch, how: int
) -> None:
    """What it would have held is known to this supervisor."""
    run = fake()
    supervision = run.supervision()

    def refused(*_: object) -> None:
        raise OSError(how, os.strerror(how))

    def from_now_on(event: ledger.Event) -> None:
        if event.kind == "plan":
            monkeypatch.setattr(Ledger, "_append", refused)

    supervision.ledger._subscribers.append(from_now_on)
    assert supervision.to_the_end().finished
    assert run.embodied() == ALL
