"""Laws of `fluxguard incident` and `fluxguard report`: what they print, what they write, and their exit codes."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluxguard.cli import app, printing
from fluxguard.clock import FakeClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor.causes.diagnosis import Evidence
from fluxguard.supervisor.incidents import incident as incidents
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.ledger import Ledger
from tests.supervisor.incidents.made import EVIL, incident


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run without an incident."""
    made = RunDir(tmp_path / "lora")
    made.create()
    Ledger(made.ledger, FakeClock()).add("job", hardened=True, weights="w")
    return made


def add(run: RunDir, number: int, cause: str = "block swap") -> None:
    """Let an incident happen."""
    made = replace(incident(), number=number, cause=cause)
    incidents.write(run, made, Evidence(stacks={7: "main (a.py:1)"}), Scene(), (), frozenset())


def call(*words: object, code: int = 0) -> str:
    """Run a verb; return what it says."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_the_newest_incident_is_shown(run: RunDir) -> None:
    """Unless another one is named."""
    add(run, 1, "killed from outside (SIGKILL)")
    add(run, 2)
    assert call("incident", run.output_dir).startswith("# Incident 2: block swap")
    assert call("incident", run.output_dir, 1).startswith("# Incident 1: killed from outside (SIGKILL)")
    assert json.loads(call("incident", run.output_dir, 1, "--json"))["cause"] == "killed from outside (SIGKILL)"


def test_all_incidents_are_listed(run: RunDir) -> None:
    """One line each; what a log put into a cause steers no terminal."""
    add(run, 1, EVIL)
    add(run, 2)
    first, second = call("incident", run.output_dir, "all").splitlines()
    assert "\x1b" not in first
    assert second.split()[0] == "2"
    assert "block swap  (resumed at step 50)" in second
    assert [one["number"] for one in json.loads(call("incident", run.output_dir, "all", "--json"))] == [1, 2]


def test_a_page_is_written_where_it_is_asked_for(run: RunDir, tmp_path: Path) -> None:
    """With the stacks that lie beside the report."""
    add(run, 1)
    page = tmp_path / "page.html"
    assert str(page) in call("incident", run.output_dir, "--html", page)
    assert "main (a.py:1)" in page.read_text("utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        call("incident", run.output_dir, "--html", tmp_path / "no" / "page.html")


def test_a_run_without_incidents_says_so(run: RunDir) -> None:
    """That is a good answer."""
    assert call("incident", run.output_dir) == "there was no incident\n"
    assert call("incident", run.output_dir, "all") == "there was no incident\n"
    assert json.loads(call("incident", run.output_dir, "--json")) is None


@pytest.mark.parametrize("words", [["7"], ["x"], ["-1"], ["1.5"]])
def test_an_incident_that_is_not_there_is_the_users_mistake(run: RunDir, words: list[str]) -> None:
    """What there is, is named."""
    add(run, 1)
    with pytest.raises(InputError, match="not one of this run"):
        call("incident", run.output_dir, "--", *words)


def test_a_report_that_is_damaged_is_named(run: RunDir) -> None:
    """And the others are still listed."""
    add(run, 1)
    add(run, 2)
    (run.incidents / "0001" / "report.json").write_text("{")
    with pytest.raises(InputError, match=r"0001.report\.json: cannot be read"):
        call("incident", run.output_dir, 1)
    assert len(call("incident", run.output_dir, "all").splitlines()) == 1


@pytest.mark.parametrize("verb", ["incident", "report"])
def test_where_there_is_no_run_nothing_is_made(tmp_path: Path, verb: str) -> None:
    """It is the user's mistake."""
    with pytest.raises(InputError, match="holds no run"):
        call(verb, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_says_what_is_in_it_and_asks_to_look(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it lies here, named after the run."""
    add(run, 1)
    monkeypatch.chdir(tmp_path)
    said = call("report", run.output_dir)
    assert "fluxguard-report-lora.zip" in said
    assert "Look into it before you send it" in said
    with zipfile.ZipFile(tmp_path / "fluxguard-report-lora.zip") as packed:
        assert all(name in said for name in packed.namelist())
    told = json.loads(call("report", run.output_dir, "--to", tmp_path / "b.zip", "--json"))
    assert told["bytes"] == (tmp_path / "b.zip").stat().st_size
    assert "job.json" in told["left_out"]


@pytest.mark.parametrize("words", [["report", "--to"], ["incident", "--html"]])
def test_a_full_disk_leaves_no_broken_file(
    run: RunDir, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part of a new one, and an older one as it was."""
    add(run, 1)
    folder = tmp_path / "to"
    folder.mkdir()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for old in (False, True):
        if old:
            (folder / "file").write_text("old")
        with pytest.raises(InputError, match="No space left"):
            call(words[0], run.output_dir, words[1], folder / "file")
        assert [path.read_text() for path in folder.iterdir()] == (["old"] if old else [])


def test_what_scripts_read_is_json() -> None:
    """NaN is none."""
    with pytest.raises(ValueError, match="JSON"):
        printing.as_json({"loss": float("nan")})
