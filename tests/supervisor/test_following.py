"""Laws of following a run: every byte once, whatever happens to the log, and nothing happens to the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxguard.clock import SystemClock
from fluxguard.rundir import RunDir
from fluxguard.supervisor import stopping
from fluxguard.supervisor.sensing import output
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.following import _Tail
from tests.supervisor.conftest import FAKE

OUTER = 60.0
STEPS = 80


def test_a_tail_gives_each_new_byte_once(tmp_path: Path) -> None:
    """From where it began, carriage returns kept."""
    log = tmp_path / "train.log"
    log.write_bytes(b"before")
    tail = _Tail(log)
    assert tail.read() == b""
    with log.open("ab") as file:
        file.write(b"\rsteps: 1%\rsteps: 2%")
    assert (tail.read(), tail.read()) == (b"\rsteps: 1%\rsteps: 2%", b"")


def test_a_tail_survives_the_cutting_of_its_log(tmp_path: Path) -> None:
    """What was not read before the cut is read from the copy."""
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * 100)
    tail = _Tail(log)
    with log.open("ab") as file:
        file.write(b"unread")
    assert output.bound(log, 50)
    with log.open("ab") as file:
        file.write(b"after")
    assert (tail.read(), tail.read(), tail.read()) == (b"unread", b"after", b"")


def test_a_tail_follows_a_log_that_was_moved_away(tmp_path: Path) -> None:
    """As a fresh run does; the new one is read from its start, even if it is the longer one."""
    log = tmp_path / "train.log"
    log.write_bytes(b"old")
    tail = _Tail(log)
    log.rename(tmp_path / "aside.log")
    assert tail.read() == b""
    log.write_bytes(b"longer than the old one")
    assert tail.read() == b"longer than the old one"


def test_a_log_may_come_later(tmp_path: Path) -> None:
    """The first run has none yet."""
    tail = _Tail(tmp_path / "train.log")
    assert tail.read() == b""
    (tmp_path / "train.log").write_bytes(b"new")
    assert tail.read() == b"new"


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that follows a training of 80 steps in `tmp_path/out`; whatever it leaves is stopped."""
    words = [
        sys.executable, "-m", "fluxguard", "supervise", "--follow", "--output-dir", str(tmp_path / "out"),
        "--python", sys.executable, "--", "python", str(FAKE), "--output_name", "x", "--save_every_n_steps", "4",
        "--max_train_epochs", "8",
    ]  # fmt: skip
    env = {**os.environ, "FAKE_STEP": "0.05", "FAKE_FAULTS": str(tmp_path)}
    # A shell lets what it starts with `&`, these tests maybe, ignore Ctrl-C, and all that is started from there too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGINT, before)
    yield process
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    stopping.stop(RunDir(tmp_path / "out"), SystemClock())


def finished(folder: Path) -> status.Status:
    """Wait for the end of the run."""
    deadline = time.monotonic() + OUTER
    while time.monotonic() < deadline:
        seen = status.read(RunDir(folder / "out"))
        if seen is not None and seen.state == "finished":
            return seen
        time.sleep(0.1)
    pytest.fail("never finished")


def begun(follower: subprocess.Popen[bytes]) -> bytes:
    """Read until the first attempt is told of."""
    assert follower.stdout is not None
    shown = b""
    while b"attempt 1" not in shown:
        line = follower.stdout.readline()
        assert line, shown
        shown += line
    return shown


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_the_whole_output_and_the_events_are_shown(follower: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """As they are in the log, and the exit code is the supervisor's."""
    shown = follower.communicate(timeout=OUTER)[0]
    assert follower.returncode == 0
    assert b"\r" in (log := (tmp_path / "out" / ".fluxguard" / "train.log").read_bytes())
    assert log[:200] in shown or log.split(b"\r")[-1] in shown
    assert shown.rstrip().splitlines()[-1].startswith(b"finished and verified: 80 steps")


@pytest.mark.integration
@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL", "SIGTERM", "SIGHUP", "broken pipe"])
def test_leaving_never_ends_the_run(follower: subprocess.Popen[bytes], tmp_path: Path, how: str) -> None:
    """It is trained by one attempt, under one supervisor, to its end."""
    begun(follower)
    if how == "broken pipe":
        assert follower.stdout is not None
        follower.stdout.close()
    else:
        follower.send_signal(getattr(signal, how))
    code = follower.wait(timeout=OUTER)
    assert code == (0 if how in ("SIGINT", "broken pipe") else -getattr(signal, how, 0))
    if how == "SIGINT":
        assert follower.stdout is not None
        assert b"detached; the run goes on. To stop it: fluxguard stop" in follower.stdout.read()
    seen = finished(tmp_path)
    assert (seen.attempts, seen.applied_steps) == (1, STEPS)


@pytest.mark.integration
def test_bad_input_is_said_at_once(tmp_path: Path) -> None:
    """Before anything is started; so it is for somebody who only asks."""
    for option in ("--follow", "--check"):
        words = [sys.executable, "-m", "fluxguard", "supervise", option, str(tmp_path / "none.sh")]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=OUTER)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.integration
def test_our_own_program_is_found_beside_a_vendored_guard(tmp_path: Path) -> None:
    """The folder of a hardened checkout holds a fluxguard that is only the guard."""
    from fluxguard.supervisor.foreground import _OURSELVES

    (tmp_path / "fluxguard").mkdir()
    (tmp_path / "fluxguard" / "__init__.py").write_text("")
    done = subprocess.run([*_OURSELVES, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=OUTER)
    assert (done.returncode, done.stdout.split()[0]) == (0, "fluxguard")
