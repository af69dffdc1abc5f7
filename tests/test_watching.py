"""Laws of `fluxguard watch`: it shows what there is, touches nothing, and can always be left."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger
from tests.test_cli import OUTER, Command, assert_one_line

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """A command line in an empty folder."""
    made = Command(tmp_path)
    made.env["TERM"] = "xterm"
    yield made
    made.stop()


class Terminal:
    """`fluxguard watch` on a terminal of its own."""

    def __init__(self, command: Command, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.theirs = theirs
        self.before = termios.tcgetattr(theirs)
        env = {"TERM": "xterm", **command.env, "COLUMNS": "80", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluxguard", "watch", *words],
            cwd=command.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        self.text = ""

    def until(self, *parts: str) -> None:
        """Wait until the screen has shown these parts."""
        deadline = time.monotonic() + OUTER
        while not all(re.search(part, self.text) for part in parts):
            assert time.monotonic() < deadline, self.text
            self._read(0.1)

    def code(self) -> int:
        """Wait for its end."""
        deadline = time.monotonic() + OUTER
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)  # who writes to a terminal that nobody reads waits
        return self.process.wait(1)

    def _read(self, seconds: float) -> None:
        if select.select([self.ours], [], [], seconds)[0]:
            self.text += re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", os.read(self.ours, 1 << 16).decode("utf-8", "replace"))


@contextlib.contextmanager
def terminal(command: Command, *words: str) -> Iterator[Terminal]:
    """Watch on a terminal; whatever is left of it is killed."""
    opened = Terminal(command, *words)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait(5)
        os.close(opened.ours)
        os.close(opened.theirs)


def training(command: Command, *flags: str) -> subprocess.Popen[str]:
    """Start a long training, and wait until it has trained a little."""
    process = command.start(*command.training("--max_train_epochs", "2000", *flags))
    deadline = time.monotonic() + OUTER
    while command.seen().get("step", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def interrupt(opened: Terminal) -> None:
    """Press Ctrl-C."""
    opened.process.send_signal(signal.SIGINT)


def press_q(opened: Terminal) -> None:
    """Press q."""
    os.write(opened.ours, b"q")


@pytest.mark.parametrize("leave", [press_q, interrupt])
def test_leaving_is_good_and_leaves_all_as_it_was(command: Command, leave: Callable[[Terminal], None]) -> None:
    """Exit code 0, the terminal as before, the training goes on, its last sight stays on the screen."""
    process = training(command)
    before = len(ledger.read(RunDir(command.out).ledger))
    with terminal(command, str(command.out), "--interval", "0.2") as opened:
        opened.until(r"out\s+running", r"phase\s+step", r"GPU\s+\w|sensors", r"next\s+in")
        opened.text = ""
        leave(opened)
        assert opened.code() == 0
        opened.until(r"out\s+running")
        assert termios.tcgetattr(opened.theirs) == opened.before
    kinds = [event.kind for event in ledger.read(RunDir(command.out).ledger)[before:]]
    assert set(kinds) <= {"trouble", "plan"}
    assert process.poll() is None
    assert command.run("stop", str(command.out))[0] == 0
    process.communicate(timeout=OUTER)


def test_a_restart_is_followed(command: Command) -> None:
    """The same view goes on with the next attempt, and names the incident."""
    process = training(command)
    with terminal(command, str(command.out), "--interval", "0.2") as opened:
        opened.until(r"attempt 1")
        for child in psutil.Process(process.pid).children(recursive=True):
            if "flux_train_network" in " ".join(child.cmdline()) and "keeper" not in " ".join(child.cmdline()):
                child.kill()
        opened.until(r"attempt 2", r"incident 1")
        press_q(opened)
        assert opened.code() == 0
    assert command.run("stop", str(command.out))[0] == 0
    process.communicate(timeout=OUTER)


def test_without_a_terminal_it_is_shown_once(command: Command) -> None:
    """With the exit code of `status`: 0 while it trains or is finished, 1 when it is stopped."""
    process = training(command)
    code, out, err = command.run("watch", str(command.out))
    assert code == 0, err
    assert re.search(r"out\s+running", out)
    assert "\x1b" not in out
    assert command.run("stop", str(command.out))[0] == 0
    process.communicate(timeout=OUTER)
    code, out, _ = command.run("watch", str(command.out), "--once")
    assert code == 1
    assert re.search(r"out\s+stopped", out)
    assert "stopped on request" in out


def test_a_run_that_nobody_supervises_is_shown_too(command: Command) -> None:
    """From its files alone; it says that nothing watches over it."""
    process = training(command)
    process.kill()
    process.communicate(timeout=OUTER)
    code, out, _ = command.run("watch", str(command.out))
    assert code == 0
    assert re.search(r"out\s+running", out)
    assert re.search(r"phase\s+step", out)
    assert "nobody watches" in out


def test_a_terminal_that_cannot_draw_gets_it_once(command: Command) -> None:
    """As no terminal does."""
    assert command.run(*command.training())[0] == 0
    command.env["TERM"] = "dumb"
    with terminal(command, str(command.out)) as opened:
        opened.until(r"out\s+finished", r"40/40")
        assert opened.code() == 0


def test_a_folder_of_runs_is_a_table(command: Command) -> None:
    """And `status`, which is for one run, says where to look."""
    command.out = command.folder / "outputs" / "first"
    code, _, err = command.run(*command.training())
    assert code == 0, err
    (command.out.parent / "no run").mkdir()
    code, out, _ = command.run("watch", str(command.out.parent))
    assert code == 0
    header, *lines = out.splitlines()
    assert header.split() == ["run", "state", "phase", "steps", "left", "incidents"]
    assert [line.split() for line in lines] == [["first", "finished", "40/40", "0"]]
    assert_one_line(command.run("status", str(command.out.parent)), "holds 1 run", "fluxguard watch")


def test_a_folder_without_runs_is_bad_input(command: Command) -> None:
    """One line that says what is wanted."""
    for verb in ("watch", "status"):
        assert_one_line(command.run(verb, str(command.folder)), "holds no run", "outputs/NAME")
    assert_one_line(command.run("watch", str(command.folder / "nowhere")), "there is no such folder")
