"""Laws of other trainings in the same folder: they are found by what they do, not by who started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from fluxguard.clock import SystemClock
from fluxguard.rundir import ATTEMPT_VARIABLE, RUN_VARIABLE, RunDir
from fluxguard.supervisor import rivals, surroundings
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.ledger import Event, Ledger
from fluxguard.supervisor.rivals import Rival
from fluxguard.supervisor.showing.telling import text
from fluxguard.supervisor.surroundings import Surroundings
from tests.supervisor.conftest import FAKE
from tests.test_cli import Command, assert_one_line

ATTEMPT = Attempt(uuid="0b9f7c1e-0000-4000-8000-000000000001", number=1, start_step=0, log_from=0, at=0.0, keeper=None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Give an empty run directory."""
    made = RunDir(tmp_path / "out")
    made.create()
    return made


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect what a test starts; all of it is ended."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def train(cwd: Path, *flags: str, **env: str) -> subprocess.Popen[bytes]:
    """Start the fake trainer as a user does."""
    argv = [sys.executable, str(FAKE), "--output_name", "x", *flags]
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, "FAKE_STEP": "30", **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 10
    while str(FAKE).encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="waits for /proc")
def test_a_training_started_by_hand_is_found_whatever_way_it_names_the_folder(
    run: RunDir, tmp_path: Path, by_hand: list[subprocess.Popen[bytes]]
) -> None:
    """By a relative path, a link, the equals sign, a settings file."""
    (tmp_path / "link").symlink_to(run.output_dir)
    (tmp_path / "c.toml").write_text("[saving]\noutput_dir = 'link'\n")
    for flags in (["--output_dir", "out"], ["--output_dir=link"], ["--output_dir", f"{run.output_dir}/../out"]):
        by_hand.append(train(tmp_path, *flags))
        assert rivals.find(run, ()) == Rival(by_hand[0].pid, by_us=False)
        assert rivals.find(run, (), mine={one.pid for one in by_hand}) is None
    elsewhere = train(tmp_path, "--output_dir", "other")
    by_hand.append(elsewhere)
    assert rivals.find(run, (), mine={one.pid for one in by_hand[:-1]}) is None


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="waits for /proc")
def test_an_attempt_that_the_ledger_lost_is_found_and_those_it_knows_are_not(
    run: RunDir, tmp_path: Path, by_hand: list[subprocess.Popen[bytes]]
) -> None:
    """Somebody may have removed the ledger while it trained."""
    marks = {RUN_VARIABLE: str(run.root), ATTEMPT_VARIABLE: ATTEMPT.uuid}
    by_hand.append(train(tmp_path, "--output_dir", "out", **marks))
    assert rivals.find(run, {ATTEMPT.uuid}) is None
    found = rivals.find(run, ())
    assert found == Rival(by_hand[0].pid, by_us=True)
    assert "its ledger" in found.words


@pytest.mark.integration
@pytest.mark.timeout(60)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="waits for /proc")
def test_a_second_training_in_the_folder_is_bad_input(tmp_path: Path, by_hand: list[subprocess.Popen[bytes]]) -> None:
    """Exit code 2 and its number; nothing is started, and it lives."""
    command = Command(tmp_path)
    by_hand.append(train(tmp_path, "--output_dir", "out"))
    assert_one_line(command.run(*command.training()), f"process {by_hand[0].pid} trains into this folder")
    assert by_hand[0].poll() is None
    assert command.status() == {}


@dataclass
class Shown:
    """A process as psutil shows it."""

    words: list[str]
    cwd_: Path
    pid: int = 4711

    def cmdline(self) -> list[str]:
        return self.words

    def environ(self) -> dict[str, str]:
        return {}

    def cwd(self) -> str:
        return str(self.cwd_)

    def status(self) -> str:
        return psutil.STATUS_SLEEPING

    def create_time(self) -> float:
        return 1.0


BY_PLACE = "import sys; sys.path.insert(0, '/opt/x'); from fluxguard.cli import main; main()"


@pytest.mark.parametrize(
    ("before", "rival"),
    [
        ([sys.executable, "-m", "fluxguard", "supervise", "--no-harden", "--"], False),
        (["/env/bin/python", "/env/bin/fluxguard", "supervise", "--"], False),
        (["timeout", "9h", "fluxguard", "supervise", "--"], False),
        ([sys.executable, "-c", BY_PLACE, "supervise", "--output-dir", "out", "--"], False),
        ([], True),
        (["python", "-m", "accelerate.commands.launch"], True),
        (["nohup", "/home/fluxguard/bin/python"], True),
        (["accelerate", "launch", "--config_file", "supervise"], True),
    ],
)
def test_a_supervisor_that_hands_over_is_no_rival_and_its_trainer_command_by_itself_is_one(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[str], rival: bool
) -> None:
    """Its own command line ends with that of the trainer; after a closed terminal it lives beside its successor."""
    process = Shown([*before, "python", str(FAKE), "--output_dir", "out"], tmp_path)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter([process]))
    assert rivals.find(run, ()) == (Rival(4711, by_us=False) if rival else None)


def test_one_that_appears_while_it_trains_is_told_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on: who of the two is right is for a person to say."""
    told: list[Event] = []
    around = Surroundings(run, Ledger(run.ledger, SystemClock(), (told.append,)))
    monkeypatch.setattr(rivals, "find", lambda *_: Rival(4711, by_us=False))
    for now in (100.0, 110.0, *(200.0 + 60 * look for look in range(20))):
        around.look(ATTEMPT, now, 7)
    assert [(event.kind, event.values["kind"], event.values["step"]) for event in told] == [
        ("trouble", surroundings.SECOND, 7)
    ]
    assert "Process 4711 trains into this folder too" in str(text(told[0]))


def test_a_folder_that_goes_away_is_told_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing can be written about it any more."""
    told: list[Event] = []
    around = Surroundings(run, Ledger(run.ledger, SystemClock(), (told.append,)))
    run.output_dir.rename(run.output_dir.with_name("away"))
    for now in (100.0, 200.0):
        around.look(ATTEMPT, now, 7)
    assert [event.values["kind"] for event in told] == [surroundings.GONE]


def test_a_disk_that_answers_with_an_error_is_gone(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount of the cloud whose program died does: that must end no supervision."""

    def dead(*_: object, **__: object) -> os.stat_result:
        raise OSError(107, "Transport endpoint is not connected")

    assert not surroundings.gone(run)
    monkeypatch.setattr(os, "stat", dead)
    assert surroundings.gone(run)
