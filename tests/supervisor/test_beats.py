"""Laws of the heartbeats in memory: they end with their run, stay readable, and nobody else's are touched."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from pathlib import Path

import pytest

from fluxguard import heartbeat, rundir
from fluxguard.clock import FakeClock
from fluxguard.heartbeat import Heart
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import beats
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.showing import status

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is no such memory")

MARK = "0b9f7c1e-0000-4000-8000-000000000001"
NOBODY = 2**22 + 1
"""A number that no process has."""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The memory of this machine, empty."""
    made = tmp_path / "memory"
    made.mkdir()
    monkeypatch.setattr(rundir, "_SHARED_MEMORY", made)
    return made


def begun(output_dir: Path, *, pid: int = NOBODY) -> RunDir:
    """Return a run of one attempt, in which two ranks came to step 7."""
    run = RunDir(output_dir)
    run.create()
    folder = run.open_beats()
    book = Ledger(run.ledger, FakeClock())
    book.add("job", hardened=True, weights="w")
    book.add("attempt", attempt=MARK, number=1, start_step=0, log_from=0)
    for rank in (0, 1):
        heart = Heart(heartbeat.path_for(folder, rank), rank=rank, attempt=uuid.UUID(MARK).bytes)
        heart._pid = pid
        heart.step = 7
        heart.beat()
    return run


def test_a_run_that_is_over_leaves_nothing_in_memory_and_keeps_its_last_beats(memory: Path, tmp_path: Path) -> None:
    """Status and reports read them as before, and the next attempt gets a folder in memory again."""
    run = begun(tmp_path / "out")
    assert [path.parent for path in memory.rglob("beat.0")] == [run.beats()]
    before = status.read(run)
    beats.put_away(run)
    assert list(memory.iterdir()) == []
    attempt = attempts.last(run, Ledger(run.ledger, FakeClock()).events)
    assert attempt is not None
    assert [(beat.rank, beat.step) for beat in attempt.beats(run)] == [(0, 7), (1, 7)]
    assert status.read(run) == before
    beats.put_away(run)
    assert (read_json(run.run) or {})["beats"] == str(run.kept_beats)
    assert run.open_beats().parent == memory


def test_while_a_process_of_the_run_lives_its_beats_stay(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One inside the kernel, which no signal ends, still beats into them."""
    run = begun(tmp_path / "out")
    monkeypatch.setattr(Attempt, "processes", lambda _: [Identity.of(os.getpid())])
    beats.put_away(run)
    assert run.beats().parent == memory
    assert run.beats().is_dir()


def test_a_full_disk_leaves_the_beats_where_they_are(memory: Path, tmp_path: Path) -> None:
    """They stay readable there."""
    run = begun(tmp_path / "out")
    run.kept_beats.write_text("in the way")
    beats.put_away(run)
    assert heartbeat.ranks(run.beats()) == [0, 1]


def test_what_no_run_owns_any_more_is_removed_and_nothing_else(memory: Path, tmp_path: Path) -> None:
    """Not what a run still has, what does not say whose it is, what is no folder of ours, or what still beats."""
    gone, kept, old = begun(tmp_path / "gone"), begun(tmp_path / "kept"), begun(tmp_path / "old")
    beating = begun(tmp_path / "beating", pid=os.getpid())
    (old.beats() / rundir.BEATS_OF).unlink()
    theirs = memory / "another-program"
    shutil.copytree(gone.beats(), theirs)
    link = memory / f"fluxguard-{os.getuid()}-00000000"
    link.symlink_to(theirs)
    for run in (gone, old, beating):
        shutil.rmtree(run.root)
    assert beats.clear_leftovers() == [gone._beats_here()]
    assert sorted(memory.iterdir()) == sorted([kept.beats(), old._beats_here(), beating._beats_here(), theirs, link])
    assert heartbeat.ranks(theirs) == [0, 1]


def test_a_folder_that_another_run_took_over_is_left_to_it(memory: Path, tmp_path: Path) -> None:
    """Two run directories may have the same short name in memory."""
    run = begun(tmp_path / "out")
    (run.beats() / rundir.BEATS_OF).write_text(str(tmp_path / "other" / ".fluxguard"))
    beats.put_away(run)
    assert heartbeat.ranks(run.beats()) == [0, 1]
    assert run.beats().parent == memory


def test_where_there_is_no_such_memory_nothing_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run directory holds them from the beginning."""
    monkeypatch.setattr(rundir, "_SHARED_MEMORY", tmp_path / "none")
    run = begun(tmp_path / "out")
    assert run.beats() == run.kept_beats
    beats.put_away(run)
    assert heartbeat.ranks(run.beats()) == [0, 1]
    assert beats.clear_leftovers() == []
