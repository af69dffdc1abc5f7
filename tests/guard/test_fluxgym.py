"""Laws of FluxGym's Start button: the command it runs, and what it says at the end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fluxguard.guard.fluxgym import outcome, supervised
from fluxguard.rundir import write_json

ANSWERS = "#!/bin/sh\nprintf '%s\\n' \"$@\" > asked\nexit 0\n"
REFUSES = "#!/bin/sh\necho 'fluxguard: train.sh:1: a pipe is not read' >&2\nexit 2\n"
DONE = "Training Complete."


def gym(folder: Path, python: str = ANSWERS) -> tuple[Path, Path]:
    """Return a FluxGym's root, whose recorded Python is this shell script, and a train.sh in it."""
    root = folder / "flux gym $x"
    script = root / "outputs" / "it's me" / "train.sh"
    script.parent.mkdir(parents=True)
    script.write_text("accelerate launch x\n")
    stand_in = root / "my python"
    stand_in.write_text(python)
    stand_in.chmod(0o755)
    write_json(root / ".fluxguard-stamp.json", {"python": str(stand_in)})
    return root, script


def test_the_command_runs_the_script_supervised(tmp_path: Path) -> None:
    """In isolated mode: the folder of FluxGym holds a fluxguard too, and its PYTHONPATH is for the trainer."""
    root, script = gym(tmp_path)
    made = supervised(f'bash "{script}"', root=root, windows=False)
    expected = [str(root / "my python"), "-I", "-m", "fluxguard", "supervise", "--follow", "--replace", str(script)]
    assert shlex.split(made) == expected
    assert (root / "asked").read_text().splitlines() == [*expected[1:-1], "--check", expected[-1]]


def test_bash_reads_the_command_as_it_was_meant(tmp_path: Path) -> None:
    """Blanks, quotes and dollars in paths included."""
    root, script = gym(tmp_path)
    made = supervised(f'bash "{script}"', root=root, windows=False)
    subprocess.run(made, shell=True, cwd=root, check=True)
    assert (root / "asked").read_text().splitlines()[-1] == str(script)


def test_a_list_of_words_gives_a_list(tmp_path: Path) -> None:
    """As older FluxGyms have it."""
    root, script = gym(tmp_path)
    made = supervised(["bash", str(script)], root=root, windows=False)
    assert (made[0], made[-1]) == (str(root / "my python"), str(script))


def test_on_windows_the_command_is_one_file(tmp_path: Path) -> None:
    """A path is all that survives the page's way to cmd.exe; percent signs are kept from it in the file."""
    root, script = gym(tmp_path)
    bat = script.with_name("train 100%.bat")
    bat.write_text("accelerate launch x\r\n")
    made = Path(supervised(str(bat), root=root, windows=True))
    assert made == bat.with_name("train 100%-supervised.bat")
    last = made.read_text().splitlines()[-1]
    assert last.startswith(f'@"{root / "my python"}" "-I" "-m" "fluxguard" "supervise"')
    assert last.endswith('train 100%%.bat"')


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda root: (root / "my python").unlink(), "is gone"),
        (lambda root: (root / ".fluxguard-stamp.json").unlink(), "does not say which Python"),
        (lambda root: (root / "my python").write_text(REFUSES), "a pipe is not read"),
        (lambda root: (root / "my python").write_text("#!/bin/sh\nexit 1\n"), "exit code 1"),
        (lambda root: (root / "my python").chmod(0o644), "Permission denied"),
    ],
)
def test_our_failure_changes_nothing_and_is_said(tmp_path: Path, capsys, harm, said: str) -> None:  # type: ignore[no-untyped-def]
    """The training starts as it did before."""
    root, script = gym(tmp_path)
    harm(root)
    command = f'bash "{script}"'
    assert supervised(command, root=root, windows=False) == command
    warning = capsys.readouterr().err
    assert "NOT supervised" in warning
    assert said in warning


@pytest.mark.parametrize("command", ["", "python train.py", 'bash "a.sh" more', 'bash "a.sh', "bash"])
def test_a_command_that_runs_no_script_is_left_alone(tmp_path: Path, command: str) -> None:
    """Whatever it is."""
    assert supervised(command, root=gym(tmp_path)[0], windows=False) == command


def concluded(script: Path, *events: dict[str, object]) -> None:
    """Write a ledger beside a script; `at` is relative to the script's own time."""
    ledger = script.parent / ".fluxguard" / "ledger.jsonl"
    ledger.parent.mkdir()
    at = script.stat().st_mtime
    ledger.write_text(
        "".join(json.dumps({"version": 1, **event, "at": at + float(str(event["at"]))}) + "\n" for event in events)
    )


def test_the_end_is_told_as_it_was(tmp_path: Path) -> None:
    """Done only when it is done."""
    _, script = gym(tmp_path)
    weights = script.parent / "me.safetensors"
    assert "WITHOUT" in outcome(DONE, str(script))
    weights.write_bytes(b"x")
    assert outcome(DONE, str(script)) == DONE
    concluded(script, {"event": "attempt", "at": 1}, {"event": "stopped", "reason": "Out of memory.", "at": 2})
    assert outcome(DONE, str(script)).startswith("The training has STOPPED: Out of memory.")


@pytest.mark.parametrize("at", [-100, 100])
def test_a_finished_run_is_done_however_long_ago(tmp_path: Path, at: int) -> None:
    """As long as its weights are there."""
    _, script = gym(tmp_path)
    weights = script.parent / "me.safetensors"
    weights.write_bytes(b"x")
    concluded(script, {"event": "finished", "weights": str(weights), "at": at})
    assert outcome(DONE, str(script)) == DONE
    weights.unlink()
    assert outcome(DONE, str(script)) != DONE


def test_a_run_that_goes_on_is_not_done(tmp_path: Path) -> None:
    """The page's own view of it has ended, it has not."""
    _, script = gym(tmp_path)
    concluded(script, {"event": "stopped", "reason": "x", "at": -5}, {"event": "attempt", "at": 1})
    assert "goes on" in outcome(DONE, str(script))


def test_nothing_here_can_break_the_page(tmp_path: Path) -> None:
    """Torn ledgers and missing files included."""
    assert outcome(DONE, str(tmp_path / "none.sh")) == DONE
    _, script = gym(tmp_path)
    concluded(script)
    (script.parent / ".fluxguard" / "ledger.jsonl").write_bytes(b'{"event": "fin\n[1]\n\xff\n')
    assert "WITHOUT" in outcome(DONE, str(script))
    assert sys.executable


def test_an_earlier_success_is_not_the_end_of_a_training_without_us(tmp_path: Path) -> None:
    """The ledger of the run before knows nothing of the one that was started bare."""
    root, script = gym(tmp_path, REFUSES)
    weights = script.with_name("lora.safetensors")
    weights.touch()
    os.utime(weights, (1, 1))
    ledger = script.parent / ".fluxguard" / "ledger.jsonl"
    ledger.parent.mkdir()
    ledger.write_text(json.dumps({"event": "finished", "at": 1.0, "weights": str(weights)}) + "\n")
    assert outcome(DONE, str(script)) == DONE
    supervised(f'bash "{script}"', root=root, windows=False)
    assert "WITHOUT a new LoRA" in outcome(DONE, str(script))
