"""Laws of a trainer that fluxguard does not know: supervised by its output, and never called what was not proven."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch import interpreter
from fluxguard.supervisor import foreign
from fluxguard.supervisor.order import Order
from tests.test_cli import Command, assert_one_line

PROGRAM = """
import json, os, struct, sys, time
done = "began"
print(open(done).read() if os.path.exists(done) else "the first time", flush=True)
fresh = not os.path.exists(done)
open(done, "w").write("the second time")
for step in range(5):
    print(f"step {step}", flush=True)
    time.sleep(0.05)
if fresh and "crash" in sys.argv:
    raise RuntimeError("told to")
if "save" in sys.argv:
    data = struct.pack("<2f", 1.0, 2.0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    open(sys.argv[sys.argv.index("save") + 1], "wb").write(struct.pack("<Q", len(header)) + header + data)
"""


def order(folder: Path, *argv: str, weights: Path | None = None, python: str | None = None) -> Order:
    """Take a command."""
    return foreign.order(argv, output_dir=folder / "out", weights=weights, cwd=folder, python=python, exports={})


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """Write something that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_command_stays_as_it_is(tmp_path: Path) -> None:
    """But for the interpreter that was named."""
    made = order(tmp_path, "python", "mine.py", "--lr", "1", python=sys.executable)
    assert made.trainee.argv == (sys.executable, "mine.py", "--lr", "1")
    assert (made.trainee.foreign, made.hardened, made.trainee.weights) == (True, False, None)
    train = program(tmp_path / "train")
    assert order(tmp_path, "./train", "x").trainee.argv == (str(train), "x")


def test_what_is_first_on_the_path_runs_also_in_our_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a loop that imports fluxguard has it; nothing that is set there is lost."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    monkeypatch.setattr(interpreter, "own_prefix", lambda: ours)
    python = program(ours / "bin" / "python")
    launchers = {
        "torchrun": "torch.distributed.run",
        "accelerate-launch": "accelerate.commands.launch",
    }
    for folder in (ours, theirs):
        for name in launchers:
            program(folder / "bin" / name, f"#!{folder}/bin/python\n")
        program(folder / "bin" / "python")
    path = f"{ours / 'bin'}{os.pathsep}{theirs / 'bin'}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("VIRTUAL_ENV", str(ours))
    monkeypatch.setenv("PYTHONPATH", str(Path(interpreter.__file__).parents[2]))
    program(tmp_path / ".venv" / "bin" / "python")
    for name, module in launchers.items():
        made = order(tmp_path, name, "--x", "mine.py")
        assert made.trainee.argv == (str(python), "-m", module, "--x", "mine.py")
        assert made.job.interpreter == python
    made = order(tmp_path, "python", "mine.py")
    assert made.trainee.argv == (str(python), "mine.py")
    assert made.trainee.env["PATH"] == path
    assert made.trainee.env["VIRTUAL_ENV"] == str(ours)
    assert "PYTHONPATH" in made.trainee.env
    monkeypatch.setenv("PATH", str(theirs / "bin"))
    assert order(tmp_path, "torchrun", "mine.py").trainee.argv[0] == str(theirs / "bin" / "python")


def test_a_launcher_that_names_no_python_is_run_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the shim of a version manager, which finds out by itself."""
    shim = program(tmp_path / "bin" / "torchrun", "#!/usr/bin/env bash\n")
    monkeypatch.setenv("PATH", str(shim.parent))
    made = order(tmp_path, "torchrun", "mine.py")
    assert made.trainee.argv == (str(shim), "mine.py")


def test_a_launcher_that_is_not_on_the_path_is_looked_for_as_a_known_trainers_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environments beside the program."""
    python = program(tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert order(tmp_path, "torchrun", "mine.py").trainee.argv[:2] == (str(python), "-m")


def test_what_cannot_be_run_or_verified_is_said_before(tmp_path: Path) -> None:
    """With the name of the option."""
    with pytest.raises(InputError, match="no-such-program"):
        order(tmp_path, "no-such-program")
    with pytest.raises(InputError, match="--weights"):
        order(tmp_path, "sh", weights=Path("model.ckpt"))


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Give a command line and a program to train with."""
    made = Command(tmp_path)
    (tmp_path / "mine.py").write_text(PROGRAM)
    yield made
    made.stop()


def words(command: Command, *options: str, program: tuple[str, ...] = ()) -> list[str]:
    """Return the words that supervise the program."""
    return [
        "supervise", "--output-dir", str(command.out), "--python", sys.executable, *options,
        "--", "python", "mine.py", *program,
    ]  # fmt: skip


@pytest.mark.integration
def test_exit_code_0_is_finished_but_never_called_verified(command: Command) -> None:
    """When nothing was named that could be."""
    code, out, _ = command.run(*words(command))
    assert code == 0
    assert "finished (exit code 0; no weights were named that could be verified)" in out
    assert "and verified" not in out
    assert "does not know this trainer" in out
    seen = command.status()
    assert (seen["state"], seen["weights"]) == ("finished", {"path": None, "verified": False})
    assert "nothing to do" in command.run(*words(command))[1]


@pytest.mark.integration
def test_weights_that_were_named_are_verified(command: Command) -> None:
    """A crash is restarted from the beginning, and the end is proven."""
    target = command.out / "w.safetensors"
    program = ("crash", "save", str(target))
    code, out, _ = command.run(*words(command, "--weights", "w.safetensors", program=program))
    assert code == 0
    assert "finished and verified: 1 tensors, all finite" in out
    seen = command.status()
    assert (seen["attempts"], seen["weights"]) == (2, {"path": str(target), "verified": True})
    assert "error in the trainer (RuntimeError)" in seen["incidents"][0]["cause"]


def test_a_relative_name_of_weights_lies_in_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the shell completes it, too."""
    monkeypatch.chdir(tmp_path)
    for name in ("w.safetensors", "out/w.safetensors", tmp_path / "out" / "w.safetensors"):
        made = order(tmp_path, "sh", weights=Path(name))
        assert made.trainee.weights == tmp_path / "out" / "w.safetensors"


@pytest.mark.integration
def test_weights_that_were_named_and_not_written_are_no_success(command: Command) -> None:
    """Exit code 0 or not."""
    code, out, _ = command.run(*words(command, "--weights", "w.safetensors", "--max-restarts", "0"))
    assert code == 1
    assert "w.safetensors was not written" in out
    assert "begins from the beginning" in out


@pytest.mark.integration
def test_states_of_a_foreign_trainer_are_left_alone(command: Command) -> None:
    """Nobody knows what they are."""
    theirs = command.out / "x-state"
    theirs.mkdir(parents=True)
    (theirs / "train_state.json").write_text('{"current_epoch": 1, "current_step": 1}')
    command.run(*words(command))
    assert (theirs / "train_state.json").exists()


@pytest.mark.integration
def test_weights_are_named_for_foreign_trainers_only(command: Command) -> None:
    """Where a known one saves is known."""
    line = command.training()
    assert_one_line(command.run(line[0], "--weights", "w.safetensors", *line[1:]), "--weights")
