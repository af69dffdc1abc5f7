"""Laws of `fluxguard explain`: what any log says about an end, with the lines that show it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fluxguard import rundir
from fluxguard.cli import main
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.causes import explaining, logfile
from fluxguard.supervisor.causes.explaining import EXPLAINED, FINISHED, NOTHING, RUNNING, STOPPED, explain
from tests.supervisor import ends

HEALTHY = Path(__file__).parent / "healthy"
OOM = (
    "Traceback (most recent call last):",
    '  File "train_network.py", line 1444, in train',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)
MARK = "00000000-0000-4000-8000-000000000001"


def log(tmp_path: Path, data: bytes) -> Path:
    """Write a log and return its path."""
    path = tmp_path / "train.log"
    path.write_bytes(data)
    return path


def text(lines: list[str] | tuple[str, ...]) -> bytes:
    """Return lines as a trainer writes them."""
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize(
    "end", [end for end in ends.ends() if end.exit.code == 1 and end.lines], ids=lambda end: end.name
)
def test_a_log_alone_is_enough(end: ends.End) -> None:
    """The cause is the one that a supervisor would have found, and the line that proves it has its number."""
    lines = ends.after_start(end.lines)
    found = explaining.of_lines("a log", [logfile.LogLine(number, line) for number, line in enumerate(lines, start=1)])
    assert (found.verdict, found.cause) == (EXPLAINED, end.cause)
    assert [quote.line for quote in found.proof] != [None]
    for quote in found.proof:
        assert quote.line is None or quote.text.split("...")[0].split()[0] in lines[quote.line - 1]


def test_a_healthy_log_looks_finished() -> None:
    """The last thing that the trainer did was to save."""
    found = explain(HEALTHY / "finished.txt")
    assert (found.verdict, found.cause) == (FINISHED, "")
    assert found.proof[0].line is not None


@pytest.mark.parametrize("name", ["warnings.txt", "survived.txt"])
def test_a_log_that_stops_is_not_explained(name: str) -> None:
    """It says so, and how far it came."""
    found = explain(HEALTHY / name)
    assert found.verdict == NOTHING
    assert "Nothing in this log explains an end" in found.words
    assert "of 40" in found.words or "step" in found.words


def test_losses_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    """Also of a log that ends well: its weights are useless."""
    lines = [line.replace("2.68", "nan") for line in (HEALTHY / "finished.txt").read_text("utf-8").splitlines()]
    found = explain(log(tmp_path, text(lines)))
    assert found.cause == "loss not finite"
    assert "avr_loss=nan" in found.proof[0].text
    assert explain(log(tmp_path, text([*lines, *OOM]))).cause == "GPU memory full"


def test_an_error_behind_the_last_save_is_told(tmp_path: Path) -> None:
    """A tracker that fails at the very end, for one."""
    lines = ["                    INFO     model saved.        train_network.py:1729", *OOM]
    assert explain(log(tmp_path, text(lines))).cause == "GPU memory full"
    before = [*OOM, lines[0]]
    assert explain(log(tmp_path, text(before))).verdict == FINISHED


def test_another_run_in_the_same_console_is_another_run(tmp_path: Path) -> None:
    """FluxGym's console holds all of them: the first one's final save says nothing about the second."""
    first = (HEALTHY / "finished.txt").read_text("utf-8").splitlines()
    second = (HEALTHY / "survived.txt").read_text("utf-8").splitlines()
    assert explain(log(tmp_path, text([*first, *second]))).verdict == NOTHING
    assert explain(log(tmp_path, text([*first, *second, *OOM]))).cause == "GPU memory full"
    assert explain(log(tmp_path, text([*second, *OOM, *first]))).verdict == FINISHED


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_any_encoding_of_a_terminal_is_read(tmp_path: Path, encoding: str) -> None:
    """PowerShell writes UTF-16; without its mark it is known by its zeros, in the order of Windows."""
    data = "\r\n".join(["epoch 1/4", *OOM, ""]).encode(encoding)
    if encoding == "utf-16-be":
        data = b"\xfe\xff" + data
    found = explain(log(tmp_path, data))
    assert (found.cause, found.proof[0].line) == ("GPU memory full", 4)


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """A bar with a thousand states is one line."""
    bar = "".join(f"\rsteps:  {n}%|#  | {n}/99 [00:01<00:05, 5.1it/s]" for n in range(99))
    found = explain(log(tmp_path, f"one\n{bar}".encode() + text(OOM)))
    assert found.proof[0].line == 4


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    """Its lines are counted while that is cheap; gigabytes are not read for a number."""
    path = log(tmp_path, text(["steps:  1%"] * 800_000) + text(OOM))
    assert path.stat().st_size > 2 * logfile._END
    assert explain(path).proof[0].line == 800_003
    with path.open("r+b") as file:  # a hole of 3 GB before it costs neither disk nor time
        end = file.read()[-(1 << 20) :]
        file.truncate(0)
        file.seek(3 << 30)
        file.write(end)
    assert [quote.line for quote in explain(path).proof] == [None]


def test_a_log_that_was_cut_begins_with_a_hole(tmp_path: Path) -> None:
    """Its writer went on where it was; the zeros before are no text."""
    assert explain(log(tmp_path, bytes(100_000) + text(OOM))).cause == "GPU memory full"


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "is empty"), (b" \n\n", "is empty"), (bytes(5000), "is empty"), (bytes(range(256)) * 50, "is no text")],
)
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    """With the reason."""
    with pytest.raises(InputError, match=reason):
        explain(log(tmp_path, data))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing path, a folder without a log, and what would block a reader for ever."""
    with pytest.raises(InputError, match="there is no such file"):
        explain(tmp_path / "nowhere.log")
    with pytest.raises(InputError, match="holds no run"):
        explain(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="is no file"):
            explain(tmp_path / "pipe")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """Neither in the sentence nor in the proof."""
    token = "hf_" + "abcdEFGH" * 4
    found = explain(log(tmp_path, f"train.py: error: unrecognized arguments: --huggingface_token {token} x\n".encode()))
    assert found.cause == "bad argument"
    assert token not in json.dumps(found.to_mapping())
    assert "***" in found.words


def test_the_newest_log_of_a_folder_is_explained(tmp_path: Path) -> None:
    """Of FluxGym, kohya_ss, or whatever was written there."""
    (tmp_path / "old.log").write_bytes(text(["ValueError: nope"]))
    os.utime(tmp_path / "old.log", (1.0, 1.0))
    (tmp_path / "new.log").write_bytes(text(OOM))
    found = explain(tmp_path)
    assert (found.cause, found.source) == ("GPU memory full", str(tmp_path / "new.log"))


def begun(tmp_path: Path, *events: dict[str, object]) -> RunDir:
    """Return a run with one attempt that nobody lives of, and more events."""
    run = RunDir(tmp_path)
    run.create()
    attempt = {"event": "attempt", "attempt": MARK, "number": 1, "start_step": 0, "log_from": 0}
    job = {"event": "job", "hardened": True, "weights": str(tmp_path / "lora.safetensors")}
    lines = [json.dumps({"version": rundir.VERSION, "at": 1.0, **event}) for event in (job, attempt, *events)]
    run.ledger.write_text("\n".join(lines) + "\n")
    return run


def test_a_run_that_nobody_judged_is_judged_now(tmp_path: Path) -> None:
    """Its keeper left the exit code, its guard its last words, its trainer a log."""
    run = begun(tmp_path)
    run.log.write_bytes(text(OOM))
    write_json(run.exit(MARK), {"code": 1, "signal": None, "error": None, "at": 2.0})
    assert explain(tmp_path).cause == "GPU memory full"
    assert explain(run.root).cause == "GPU memory full"
    words = {
        "attempt": MARK,
        "cause": "block swap",
        "verdict": "again",
        "what": "block swap",
        "limit": 2,
        "waited": 2.1,
    }
    write_json(run.last_words(0), words)
    assert explain(tmp_path).cause == "block swap"
    run.log.write_bytes(b"")
    run.last_words(0).unlink()
    assert explain(tmp_path).verdict == NOTHING
    write_json(run.exit(MARK), {"code": None, "signal": 9, "error": None, "at": 2.0})
    assert explain(tmp_path).cause == "killed from outside (SIGKILL)"


def test_what_was_judged_at_the_time_is_told(tmp_path: Path) -> None:
    """An incident in the ledger knew more than the log does now."""
    incident = {"event": "incident", "number": 1, "cause": "system memory full", "step": 3, "report": None}
    begun(tmp_path, {**incident, "words": "No memory.", "advice": "More memory."})
    found = explain(tmp_path)
    assert (found.verdict, found.cause, found.words) == (EXPLAINED, "system memory full", "No memory.")


def test_a_run_that_ended_well_or_on_request_is_told(tmp_path: Path) -> None:
    """Neither is an incident."""
    finished = {"event": "finished", "attempt": MARK, "reason": "finished and verified", "weights": "x"}
    begun(tmp_path, {**finished, "applied_steps": 4})
    assert explain(tmp_path).verdict == FINISHED
    begun(
        tmp_path,
        {"event": "ended", "attempt": MARK, "step": 3},
        {"event": "stopped", "reason": "on request", "applied_steps": 3},
    )
    found = explain(tmp_path)
    assert (found.verdict, found.words) == (STOPPED, "On request.")
    assert RUNNING == "running"


def run_verb(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr("sys.argv", ["fluxguard", "explain", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_verb_says_it_and_has_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 for an answer, 1 for none, 2 for bad input."""
    path = log(tmp_path, text(["epoch 1/4", *OOM]))
    assert run_verb([str(path)], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "GPU memory full (certain)" in said
    assert "line 4: torch.OutOfMemoryError" in said
    assert "What to do: " in said
    assert run_verb([str(path), "--json"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "GPU memory full"
    assert run_verb([str(HEALTHY / "finished.txt")], monkeypatch) == 0
    assert run_verb([str(HEALTHY / "survived.txt")], monkeypatch) == 1
    assert run_verb([str(tmp_path / "nowhere")], monkeypatch) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["Killed", "Terminated", "KeyboardInterrupt"])
def test_who_reads_a_foreign_log_has_something_to_do(tmp_path: Path, line: str) -> None:
    """Nobody starts that training again, so it is never said that nothing has to be done."""
    found = explain(log(tmp_path, text(["some trainer", line])))
    assert found.cause.startswith("killed from outside")
    assert found.advice
    assert "nothing has to be done" not in found.advice.lower()


def test_where_a_foreign_log_ends_is_said_with_its_total(tmp_path: Path) -> None:
    """Its own bar tells it."""
    found = explain(log(tmp_path, text(["Training: 40%|####| 40/100 [00:40<01:00, 1it/s]"])))
    assert (found.verdict, "step 40 of 100" in found.words) == (NOTHING, True)
