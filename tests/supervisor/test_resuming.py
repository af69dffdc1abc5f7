"""Laws of taking up what was interrupted: which runs those are, and by what command each goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fluxguard.clock import FakeClock, SystemClock
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor import resuming
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.ownership import owned
from fluxguard.supervisor.resuming import Command, Unknown
from fluxguard.supervisor.sensing import processes
from tests.test_cli import OUTER, assert_one_line
from tests.test_cli import Command as CommandLine


def run_in(folder: Path, *kinds: str) -> RunDir:
    """Make a run whose ledger holds events of these kinds."""
    run = RunDir(folder)
    run.create()
    ledger = Ledger(run.ledger, SystemClock())
    for kind in kinds:
        values = {"attempt": {"attempt": "a", "number": 1, "start_step": 0, "log_from": 0}}.get(kind, {})
        ending = {"reason": f"{kind} it is", "applied_steps": 0, "attempt": "a", "weights": ""}
        ledger.add(kind, **(values or (ending if kind != "job" else {"hardened": False, "weights": ""})))
    return run


def test_only_what_was_interrupted_is_taken_up(tmp_path: Path) -> None:
    """At any depth; what --fresh set aside is history."""
    run_in(tmp_path / "a", "job", "attempt", "finished")
    run_in(tmp_path / "b", "job", "attempt", "stopped")
    run_in(tmp_path / "c", "job", "attempt", "stopped", "job", "attempt")
    run_in(tmp_path / "deep" / "er" / "d", "job", "attempt")
    run_in(tmp_path / "c" / "old-20260101-000000", "job", "attempt")
    with owned(run_in(tmp_path / "e", "job", "attempt")):
        found = {one.run.output_dir.name: one.kind for one in resuming.find(tmp_path)}
    assert found == {"a": "finished", "b": "stopped", "c": "interrupted", "d": "interrupted", "e": "supervised"}


def job(run: RunDir, **changes: object) -> None:
    """Write what job.json says of how a run was begun."""
    said = {
        "arguments": ["supervise", "train.sh"],
        "arguments_in": str(run.output_dir),
        "source": "command line",
        "secrets": [],
    }
    write_json(run.job, {**said, **changes})


def test_a_run_goes_on_by_the_words_that_began_it(tmp_path: Path) -> None:
    """In the folder where they were given; a secret of the environment that is not there now is named."""
    run = run_in(tmp_path / "a")
    job(run, secrets=["HF_TOKEN", "WANDB_API_KEY"])
    how = resuming.command(run, {"WANDB_API_KEY": "x"})
    assert how == Command(("supervise", "train.sh"), run.output_dir, ("HF_TOKEN was set when it began, not now",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arguments": ["supervise", "--", "python", "t.py", "--huggingface_token", "***"]}, "--huggingface_token"),
        ({"arguments": ["supervise", "--", "python", "t.py", "--wandb_api_key=***"]}, "--wandb_api_key"),
        ({"arguments": None}, "older fluxguard"),
        ({"source": "/nowhere/train.sh"}, "/nowhere/train.sh is not there"),
        ({"arguments_in": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"output_dir": "/elsewhere/out"}, "moved or copied here, and its command saves into /elsewhere/out"),
    ],
)
def test_a_run_that_cannot_be_taken_up_says_why(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    """The flag, the file or the folder is named."""
    run = run_in(tmp_path / "a")
    job(run, **changes)
    how = resuming.command(run, os.environ)
    assert isinstance(how, Unknown)
    assert said in how.reason


@pytest.fixture
def command(tmp_path: Path) -> Iterator[CommandLine]:
    """Give a command line in an empty folder."""
    made = CommandLine(tmp_path)
    yield made
    made.stop()


def reboot(run: RunDir) -> None:
    """End everything of a run, and let its ledger and its heartbeats look as after another start of the machine."""
    attempt = attempts.last(run, ledgers.read(run.ledger))
    assert attempt is not None
    assert attempt.keeper is not None
    for identity in [attempt.keeper, *attempt.processes()]:
        psutil.Process(identity.pid).send_signal(signal.SIGKILL)
    boot = attempt.keeper.boot
    run.ledger.write_text(run.ledger.read_text().replace(boot, "another-start"))
    for beat in run.beats().glob("*"):
        beat.unlink()
    run.beats().rmdir()


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_a_rebooted_machine_takes_its_runs_up_again(command: CommandLine) -> None:
    """Told what it does, and with --dry-run only told; afterwards nothing is left to do."""
    first = command.start(*command.training("--max_train_epochs", "8"))
    command.until(state="running", phase="step")
    first.kill()
    first.communicate(timeout=OUTER)
    reboot(RunDir(command.out))
    code, out, _ = command.run("resume-all", str(command.folder), "--dry-run")
    assert (code, "would be taken up again" in out) == (0, True)
    assert command.status()["attempts"] == 1
    process = command.start("resume-all", str(command.folder))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "finished and verified: 80 steps" in out
    seen = command.status()
    assert (seen["state"], seen["attempts"]) == ("finished", 2)
    assert [one["cause"] for one in seen["incidents"]] == ["machine restarted"]
    code, out, _ = command.run("resume-all", str(command.folder))
    assert (code, "finished" in out, "taken up" in out) == (0, True, False)


@pytest.mark.integration
def test_resume_all_wants_a_folder(command: CommandLine) -> None:
    """One without runs is no error, one that is not there is."""
    assert_one_line(command.run("resume-all", "nowhere"), "nowhere")
    assert command.run("resume-all", str(command.folder))[0] == 0


@pytest.mark.integration
def test_how_a_run_was_begun_is_kept_without_secrets(command: CommandLine) -> None:
    """Its words are in job.json, but for the values of secret flags."""
    words = command.training("--max_train_epochs", "1", "--learning_rate", "1")
    command.run(words[0], "--max-restarts", "0", *words[1:])
    said = json.loads((command.out / ".fluxguard" / "job.json").read_text())
    assert said["arguments"][:3] == ["supervise", "--max-restarts", "0"]
    assert Path(said["arguments_in"]) == command.folder


@pytest.mark.integration
def test_how_a_run_went_is_known_whatever_began_after_it(tmp_path: Path) -> None:
    """One that ended before the next one is taken up is not waited for for ever."""
    script = [sys.executable, "-c", "raise SystemExit(3)"]
    first = processes.detached(script, env=dict(os.environ), cwd=tmp_path)
    child = psutil.Process(first)
    end = time.monotonic() + OUTER
    while child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.02)
    second = processes.detached(script, env=dict(os.environ), cwd=tmp_path)
    assert processes.exit_code(first) == 3
    psutil.Process(second).wait(OUTER)


def test_a_run_that_cannot_be_taken_up_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said of that one; the others are taken up."""
    runs = [run_in(tmp_path / name, "job", "attempt") for name in ("a", "b")]

    def started(run: RunDir, *_: object, **__: object) -> int:
        if run == runs[0]:
            raise PermissionError(13, "Permission denied")
        return 77

    monkeypatch.setattr("fluxguard.supervisor.foreground.detached", started)
    monkeypatch.setattr("fluxguard.supervisor.sensing.processes.exit_code", lambda _: 0)
    waiting = [(run, Command(("supervise",), tmp_path)) for run in runs]
    done = resuming.resume(waiting, 1, FakeClock(), lambda *_: None)
    assert [(one.run, one.code) for one in done] == [(runs[0], 1), (runs[1], 0)]
