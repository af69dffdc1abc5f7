"""Laws of the command line, as a user meets it: real processes, a trainer that trains nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fluxguard import cli
from fluxguard.clock import SystemClock
from fluxguard.errors import FluxguardError
from fluxguard.rundir import RunDir
from fluxguard.supervisor import stopping
from fluxguard.supervisor.showing import status as statuses
from tests.conftest import POLL
from tests.supervisor.conftest import FAKE

pytestmark = pytest.mark.integration

OUTER = 45.0


class Command:
    """Runs fluxguard in one folder, and stops whatever it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.env = {**os.environ, "FAKE_STEP": "0.03", "FAKE_FAULTS": str(folder)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command."""
        argv = [sys.executable, "-m", "fluxguard", *words]
        return subprocess.Popen(
            argv, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command to its end; return its code and what it said."""
        process = self.start(*words)
        out, err = process.communicate(timeout=OUTER)
        return process.returncode, out, err

    def told(self, *words: str) -> tuple[int, str, str]:
        """Give a command that starts nothing to the command line in this process, which saves half a second."""
        before, out, err = os.getcwd(), io.StringIO(), io.StringIO()
        os.chdir(self.folder)
        try:
            with (
                mock.patch.object(sys, "argv", ["fluxguard", *words]),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit) as end,
            ):
                cli.main()
        finally:
            os.chdir(before)
        return int(end.value.code or 0), out.getvalue(), err.getvalue()

    def training(self, *flags: str) -> list[str]:
        """Return the words that supervise a training of 40 steps."""
        return [
            "supervise", "--output-dir", str(self.out), "--python", sys.executable, "--",
            "python", str(FAKE), "--output_name", "x", "--save_every_n_steps", "4", *flags,
        ]  # fmt: skip

    def script(self, text: str) -> Path:
        """Write a train.sh."""
        path = self.folder / "train.sh"
        path.write_text(text)
        return path

    def status(self) -> dict[str, Any]:
        """Return what `status --json` says; empty while there is no run."""
        _, out, _ = self.run("status", str(self.out), "--json")
        return dict(json.loads(out)) if out else {}

    def seen(self) -> dict[str, Any]:
        """Return the same without starting the command."""
        seen = statuses.read(RunDir(self.out))
        return {} if seen is None else seen.to_mapping()

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait for a status."""
        deadline = time.monotonic() + OUTER
        while time.monotonic() < deadline:
            seen = self.seen()
            if seen and all(seen[key] == value for key, value in wanted.items()):
                return seen
            time.sleep(POLL)
        pytest.fail(f"never {wanted}: {seen}")

    def stop(self) -> None:
        """Stop whatever trains."""
        with contextlib.suppress(FluxguardError, OSError):
            stopping.stop(RunDir(self.out), SystemClock())


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """A command line in an empty folder."""
    made = Command(tmp_path)
    yield made
    made.stop()


def assert_one_line(answer: tuple[int, str, str], *parts: str) -> None:
    """Bad input: exit code 2, one clear line, no traceback."""
    code, _, err = answer
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1
    for part in parts:
        assert part in err


TRAIN = f"{shlex.quote(sys.executable)} {shlex.quote(str(FAKE))} --output_dir out --output_name x"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{TRAIN} | tee log\n", ["train.sh:1", "fluxguard supervise --output-dir"]),
        (f"#!/bin/bash\nfor i in 1 2; do\n{TRAIN}\ndone\n", ["train.sh:2"]),
        ("python other.py\n", ["no known trainer"]),
        (f"{TRAIN} --dataset_config none.toml\n", ["none.toml"]),
        (f"{TRAIN} --dataset_config broken.toml\n", ["broken.toml"]),
        (f"{TRAIN} --dataset_config empty.toml\n", ["empty.toml", "no images"]),
        (f"{TRAIN} --max_train_epochs many\n", ["--max_train_epochs"]),
        (f"{TRAIN} --resume x-state\n", ["--resume"]),
        (f"{TRAIN} --save_model_as ckpt\n", ["--save_model_as"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command: Command, text: str, parts: list[str]) -> None:
    """The file and the field are named."""
    (command.folder / "images").mkdir()
    (command.folder / "broken.toml").write_text("[[datasets]\nresolution = ")
    (command.folder / "empty.toml").write_text("[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'images'\n")
    assert_one_line(command.told("supervise", str(command.script(text))), *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["supervise", "none.sh"], ["none.sh"]),
        (["supervise"], ["train.sh"]),
        (["supervise", "--output-dir", "x", "train.sh"], ["--output-dir x"]),
        (["supervise", "train.sh", "more"], ["more"]),
        (["status", "nowhere"], ["nowhere", "there is no such folder"]),
        (["states", "nowhere"], ["nowhere", "there is no such folder"]),
        (["stop", "nowhere"], ["nowhere"]),
        (["limits", "nowhere"], ["nowhere", "holds no run"]),
        (["demo", "--fault", "flood"], ["flood", "kill, swap, worker"]),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(command: Command, words: list[str], parts: list[str]) -> None:
    """Whatever the verb."""
    assert_one_line(command.told(*words), *parts)


def test_a_wrong_limit_is_named(command: Command) -> None:
    """With its file and its field."""
    (command.folder / "my.toml").write_text("[wait]\nblock_swap = 0\n")
    words = command.training()
    assert_one_line(command.told(*words[:1], "--limits", "my.toml", *words[1:]), "my.toml", "wait.block_swap")


def test_the_limits_of_a_run_say_why(command: Command) -> None:
    """What the file names, what an option says, what was learned, and the rest; for people and for scripts."""
    (command.folder / "my.toml").write_text("[wait]\nbatch = 70\n")
    words = command.training("--max_train_steps", "4")
    assert command.run(*words[:1], "--limits", "my.toml", "--max-restarts", "2", *words[1:])[0] in (0, 1)
    learned = {"version": 1, "waits": {"block_swap": 7.2, "batch": 20.0, "read": 1e300}}
    (command.out / ".fluxguard" / "learned.json").write_text(json.dumps(learned))
    code, out, _ = command.run("limits", str(command.out), "--json")
    said = json.loads(out)
    assert code == 0
    assert said["wait.batch"] == {"value": 70.0, "unit": "s", "why": "your limits file", "longest_s": None}
    assert said["wait.block_swap"]["why"] == "learned: 10 x 7.2 s, the longest completed block swap"
    assert said["wait.block_swap"]["value"] == 72.0
    assert said["wait.read"]["why"] == "default"
    assert said["max_restarts"] == {"value": 2, "unit": None, "why": "--max-restarts", "longest_s": None}
    code, out, _ = command.run("limits", str(command.out))
    assert code == 0
    assert "learned: 10 x 7.2 s" in out
    assert len(out.splitlines()) >= len(said)


def test_a_run_ends_verified_and_is_then_left_alone(command: Command) -> None:
    """Exit code 0, and the same line again changes nothing; another command is an error; --fresh begins anew."""
    code, out, _ = command.run(*command.training())
    assert code == 0
    assert "finished and verified: 40 steps" in out
    seen = command.status()
    assert (seen["state"], seen["watched"], seen["planned_steps"], seen["applied_steps"]) == ("finished", False, 40, 40)
    assert seen["weights"]["verified"]
    assert seen["next_attempt_at"] is None
    written = Path(seen["weights"]["path"]).stat().st_mtime_ns
    code, out, _ = command.run(*command.training())
    assert code == 0
    assert "nothing to do" in out
    assert Path(seen["weights"]["path"]).stat().st_mtime_ns == written
    assert_one_line(command.run(*command.training("--learning_rate", "1")), "--learning_rate", "--fresh")
    fresh = command.training("--learning_rate", "1")
    code, _, _ = command.run(fresh[0], "--fresh", *fresh[1:])
    assert code == 0
    assert [path.name for path in command.out.glob("old-*/*.safetensors")] == ["x.safetensors"]


def test_a_folder_has_one_supervisor(command: Command) -> None:
    """The second one is refused, and names the first."""
    first = command.start(*command.training("--max_train_epochs", "50"))
    command.until(state="running", watched=True)
    again = command.training("--max_train_epochs", "50")
    assert_one_line(command.run(*again), str(first.pid))
    assert_one_line(command.run(again[0], "--fresh", *again[1:]), str(first.pid))
    code, out, _ = command.run("stop", str(command.out))
    assert code == 0
    assert "resumes it" in out
    first.communicate(timeout=OUTER)
    assert first.returncode == 1


def test_ctrl_c_detaches_and_the_run_ends_right(command: Command) -> None:
    """The training goes on, somebody watches it, and the stop command was printed."""
    first = command.start(*command.training("--max_train_epochs", "8"))
    command.until(state="running", phase="step")
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=OUTER)
    assert first.returncode == 0
    assert "fluxguard stop" in out
    seen = command.until(state="finished")
    assert (seen["attempts"], seen["applied_steps"]) == (1, 80)


def test_a_killed_supervisor_is_followed_by_the_next(command: Command) -> None:
    """SIGKILL: the trainer goes on unwatched, the next supervise adopts it, the end is right."""
    first = command.start(*command.training("--max_train_epochs", "10"))
    command.until(state="running", phase="step")
    first.kill()
    first.communicate()
    assert command.until(watched=False)["state"] == "running"
    code, out, _ = command.run(*command.training("--max_train_epochs", "10"))
    assert code == 0
    assert "was left by another supervisor" in out
    assert command.status()["attempts"] == 1


def test_a_stopped_run_resumes(command: Command) -> None:
    """Status says 1 while it is stopped; supervise goes on from its newest state."""
    first = command.start(*command.training("--max_train_epochs", "20"))
    command.until(state="running", phase="step")
    time.sleep(0.5)
    command.run("stop", str(command.out))
    first.communicate(timeout=OUTER)
    assert command.run("status", str(command.out))[0] == 1
    assert command.status()["state"] == "stopped"
    code, out, _ = command.run(*command.training("--max_train_epochs", "20"))
    assert code == 0
    assert "from the state of step" in out


def test_secrets_are_never_written_down(command: Command) -> None:
    """Neither from the command nor from the environment."""
    command.env["HF_TOKEN"] = "hf_verysecret"
    words = command.training("--learning_rate", "1")
    command.run(*words)
    for path in (command.out / ".fluxguard").rglob("*"):
        if path.is_file():
            assert b"hf_verysecret" not in path.read_bytes(), path


def test_help_names_every_verb(command: Command) -> None:
    """The surface, frozen."""
    _, out, _ = command.run("--help")
    assert all(verb in out for verb in ("supervise", "status", "stop", "demo", "apply-patches", "app"))


def test_a_script_of_fluxgym_is_run_from_its_root(command: Command) -> None:
    """It writes no cd and a trainer relative to its own root, wherever it is started from."""
    root = command.folder / "gym"
    (root / "sd-scripts").mkdir(parents=True)
    (root / "sd-scripts" / FAKE.name).write_text(FAKE.read_text())
    script = root / "outputs" / "x" / "train.sh"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"{shlex.quote(sys.executable)} sd-scripts/{FAKE.name} --output_dir {script.parent} --output_name x\n"
    )
    code, out, err = command.run("supervise", str(script))
    assert (code, "finished and verified" in out) == (0, True), err
    assert_one_line(command.run("supervise", "--cwd", "nowhere", str(script)), "--cwd", "nowhere")


def test_a_command_that_trained_nothing_may_be_corrected(command: Command) -> None:
    """A typo is corrected without --fresh."""
    code, out, _ = command.run(*command.training("--sdpaa"))
    assert code == 1
    assert "--sdpaa" in out
    assert command.status()["incidents"][0]["cause"] == "bad argument"
    code, _, _ = command.run(*command.training())
    assert code == 0


def test_weights_that_are_gone_are_trained_again(command: Command) -> None:
    """Finished once is not finished for ever."""
    command.run(*command.training())
    path = Path(command.status()["weights"]["path"])
    path.write_bytes(path.read_bytes()[:100])
    assert not command.status()["weights"]["verified"]
    code, out, _ = command.run(*command.training())
    assert code == 0
    assert "from the state of step" in out
    assert command.status()["weights"]["verified"]


def test_a_damaged_state_is_named_when_an_older_one_is_used(command: Command) -> None:
    """Nobody wonders where the steps went."""
    first = command.start(*command.training("--max_train_epochs", "20"))
    command.until(state="running", phase="step")
    time.sleep(1)
    command.run("stop", str(command.out))
    first.communicate(timeout=OUTER)
    newest = max((command.out / ".fluxguard" / "states").iterdir())
    data = bytearray((newest / "optimizer.bin").read_bytes())
    data[-100] ^= 1
    (newest / "optimizer.bin").write_bytes(data)
    code, out, _ = command.run(*command.training("--max_train_epochs", "20"))
    assert code == 0
    assert "optimizer.bin is not what was saved" in out
    assert newest.name in out


def test_an_output_folder_that_cannot_be_is_bad_input(command: Command) -> None:
    """A file in its place, for instance."""
    command.out.write_text("a file")
    assert_one_line(command.run(*command.training()), str(command.out))
    command.out.unlink()


def test_what_is_asked_of_a_run_that_lives_is_for_its_next_attempt(command: Command) -> None:
    """The one that goes on is left as it is; when it was stopped, the next one has it, and status says so."""
    command.env["FAKE_STEP"] = "2"
    words = command.training()
    supervisor = command.start(*words)
    command.until(phase="step")
    code, out, _ = command.run("supervise", "--debug-distributed", *words[1:])
    assert code == 0
    assert "the next attempt debugs its collectives" in out
    assert supervisor.poll() is None
    assert command.status()["debugging"].startswith("the next attempt")
    command.run("stop", str(command.out))
    supervisor.communicate(timeout=OUTER)
    command.env["FAKE_STEP"] = "0.01"
    code, out, _ = command.run(*words)
    assert code == 0
    assert "NCCL_DEBUG=INFO" in out
    assert command.status()["debugging"] == ""
