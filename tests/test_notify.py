"""Laws of notifications on the command line: people are told, and no URL stands where others can read it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fluxguard.supervisor.messages.notifying import VARIABLE
from tests.supervisor.receivers import SECRET, receiver
from tests.test_cli import OUTER, Command, assert_one_line

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """A command line in an empty folder, told by nobody whom to notify."""
    made = Command(tmp_path)
    made.env.pop(VARIABLE, None)
    yield made
    made.stop()


def holding_it(command: Command) -> list[str]:
    """Return the files below a folder and the command lines that hold the secret."""
    files = []
    for folder, _, names in os.walk(command.folder):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):  # it was temporary
                files += [str(path)] if SECRET in path.read_text("latin-1") else []
    lines = []
    for process in psutil.process_iter():
        try:
            lines += [line for line in [" ".join(process.cmdline())] if SECRET in line]
        except psutil.Error:
            continue
    return files + lines


def test_the_end_of_a_run_is_told(command: Command) -> None:
    """By the variable, so that no command line and no file ever holds it."""
    with receiver() as there:
        command.env[VARIABLE] = there.url
        process = command.start(*command.training())
        seen: list[str] = []
        while process.poll() is None:
            seen += holding_it(command)
        out, err = process.communicate(timeout=OUTER)
    assert process.returncode == 0, err
    assert there.titles == ["finished and verified"]
    assert there.got[0]["title"].startswith("out: ")
    assert f"More: fluxguard status {command.out}" in there.got[0]["message"]
    assert seen == holding_it(command) == []
    assert SECRET not in out + err


def test_the_next_supervisor_knows_whom_to_tell(command: Command) -> None:
    """Ctrl-C hands the run over: the URLs travel in the environment, and what was typed is gone with its process."""
    with receiver() as there:
        words = command.training("--max_train_epochs", "2000")
        process = command.start(words[0], "--notify", there.url, "--notify-on", "end", *words[1:])
        command.until(state="running", watched=True)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=OUTER)
        assert "detached" in out
        command.until(state="running", watched=True)
        assert holding_it(command) == []
        command.run("stop", str(command.out))
        deadline = time.monotonic() + OUTER
        while not there.got and time.monotonic() < deadline:
            time.sleep(0.05)
    assert there.titles == ["stopped"]
    assert holding_it(command) == []


def test_who_follows_a_run_hides_the_urls_too(command: Command) -> None:
    """The supervisor behind `--follow` has them in its environment."""
    with receiver() as there:
        words = command.training()
        code, out, err = command.run(words[0], "--follow", f"--notify={there.url}", *words[1:])
    assert code == 0, err
    assert there.titles == ["finished and verified"]
    assert holding_it(command) == []
    assert SECRET not in out + err


def test_a_run_that_told_people_says_when_it_does_so_no_more(command: Command) -> None:
    """Once: the one after it has nothing to miss."""
    words = command.training("--max_train_epochs", "2000")
    said = []
    with receiver() as there:
        for extra in (["--notify", there.url], [], []):
            process = command.start(words[0], *extra, *words[1:])
            command.until(state="running", watched=True)
            process.terminate()
            said.append("nobody is notified from now on" in process.communicate(timeout=OUTER)[0])
    assert said == [False, True, False]


@pytest.mark.parametrize("url", [f"nosuch://{SECRET}", SECRET, f"tgram://{SECRET}"])
def test_a_bad_url_is_one_line_and_exit_code_2(command: Command, url: str) -> None:
    """Nothing starts, and the line does not repeat what may be a secret."""
    words = command.training()
    answer = command.run(words[0], "--notify", url, *words[1:])
    assert_one_line(answer, "--notify")
    assert SECRET not in answer[2]
    assert not command.out.exists()


def test_a_test_message_can_be_sent(command: Command) -> None:
    """Exit code 0 when all took it, 1 when one did not, 2 without a URL; only hosts are shown."""
    assert_one_line(command.run("notify-test"), VARIABLE)
    with receiver() as there, receiver(404) as other:
        code, out, err = command.run("notify-test", there.url)
        assert (code, len(there.got)) == (0, 1), err
        command.env[VARIABLE] = other.url
        code, out, _ = command.run("notify-test", there.url)
    assert code == 1
    assert out.splitlines()[0].endswith(": sent")
    assert out.splitlines()[1].endswith(": not sent: it answered 404")
    assert SECRET not in out


def test_check_sends_nothing(command: Command) -> None:
    """It only says whether the URLs could be used."""
    words = command.training()
    with receiver() as there:
        code, _, err = command.run(words[0], "--check", "--notify", there.url, *words[1:])
    assert (code, there.got) == (0, []), err
