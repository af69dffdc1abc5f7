"""Laws of the request to end: only the process that is meant ends, and by the code that says try again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fluxguard.guard import asked, ending, pulse
from fluxguard.rundir import AGAIN, RunDir, end_request, write_json
from tests.conftest import Spawn


class Ended(Exception):
    """Raised in the place of an end."""


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file of a process that can be asked."""
    path = tmp_path / "end.0"

    def end(verdict: ending.Verdict) -> None:
        raise Ended(verdict.what)

    monkeypatch.setattr(pulse, "end_request", lambda: path)
    monkeypatch.setattr(ending, "end_process", end)
    return path


def test_a_process_that_is_asked_ends_and_says_why(request_: Path) -> None:
    """In the supervisor's words."""
    asked.look()
    write_json(request_, {"pid": os.getpid(), "why": "stuck for 3 s"})
    with pytest.raises(Ended, match="stuck for 3 s"):
        asked.look()


@pytest.mark.parametrize("pid", [1, None, "me"])
def test_a_request_for_another_process_ends_nobody(request_: Path, pid: object) -> None:
    """The rank of the round before had the same name."""
    write_json(request_, {"pid": pid, "why": "x"})
    asked.look()
    request_.write_text("{")
    asked.look()


def test_without_memory_for_heartbeats_nobody_can_be_asked(tmp_path: Path) -> None:
    """The watcher must never wait for a disk."""
    assert end_request(tmp_path, 0) is None
    assert pulse.end_request() is None


_RANK = """
import os, sys, time
from fluxguard.guard import pulse
pulse.train_begins()
print("trains", flush=True)
time.sleep(60)
"""


@pytest.mark.integration
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no memory for heartbeats")
def test_a_rank_ends_by_its_code_when_the_supervisor_asks(tmp_path: Path, spawn: Spawn) -> None:
    """Whatever it does meanwhile; its last words are there."""
    run = RunDir(tmp_path / "out")
    run.create()
    folder = run.open_beats()
    (tmp_path / "rank.py").write_text(_RANK)
    try:
        rank = spawn(tmp_path / "rank.py", env={"FLUXGUARD_RUN": str(run.root)})
        rank.until("trains")
        path = end_request(folder, 0)
        assert path is not None
        write_json(path, {"pid": rank.pid, "why": "told to"})
        assert rank.ends(10) == AGAIN
        assert run.last_words(0).exists()
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
