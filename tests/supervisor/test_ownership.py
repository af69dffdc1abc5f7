"""Laws of owning a run: one supervisor, also where locks do not reach or notes are damaged."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from pathlib import Path

import pytest
from filelock import FileLock

from fluxguard.errors import InputError, RunOwned
from fluxguard.limits import ELSEWHERE
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import ownership
from fluxguard.supervisor.ownership import owned, owner
from fluxguard.supervisor.sensing.identity import Identity


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Give an empty run directory."""
    made = RunDir(tmp_path / "out")
    made.create()
    return made


def note(run: RunDir, *, host: str, boot: str, silent: float) -> None:
    """Leave the note of a supervisor."""
    write_json(run.owner, {"pid": 4711, "started": 1.0, "boot": boot, "host": host})
    at = time.time() - silent
    os.utime(run.owner, (at, at))


def test_a_run_has_one_owner(run: RunDir) -> None:
    """Whoever comes second is told who it is."""
    with owned(run), pytest.raises(RunOwned, match=str(os.getpid())), owned(run):
        pass
    assert owner(run) is None


def test_a_folder_reached_by_another_path_is_the_same_run(run: RunDir, tmp_path: Path) -> None:
    """A link does not lead around the lock."""
    (tmp_path / "link").symlink_to(run.output_dir)
    with owned(run), pytest.raises(RunOwned), owned(RunDir(tmp_path / "link")):
        pass


def test_a_supervisor_on_another_machine_is_respected_while_it_gives_signs(run: RunDir) -> None:
    """Its name is said, and when this can go on."""
    note(run, host="far-away", boot="another", silent=10.0)
    with pytest.raises(InputError, match=r"far-away, process 4711; last sign 10 s ago"), owned(run):
        pass
    note(run, host="far-away", boot="another", silent=ELSEWHERE + 1)
    with owned(run):
        assert ownership.elsewhere(run) is None


def test_a_trainer_that_writes_on_another_machine_is_a_sign(run: RunDir) -> None:
    """Its supervisor may have died before it."""
    note(run, host="far-away", boot="another", silent=ELSEWHERE + 1)
    run.log.write_text("step 5")
    with pytest.raises(InputError, match="far-away"), owned(run):
        pass


def test_a_machine_that_was_restarted_is_no_other_one(run: RunDir) -> None:
    """It keeps its name; and a container that is made anew keeps its start."""
    note(run, host=socket.gethostname(), boot="before", silent=1.0)
    with owned(run):
        pass
    me = Identity.of(os.getpid())
    assert me is not None
    note(run, host="container-2", boot=me.boot, silent=1.0)
    with owned(run):
        pass


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", "{}", '{"version": 1, "pid": "x"}', '{"version": 1, "pid": 1e30, "started": 1}']
)
def test_a_damaged_note_names_nobody(run: RunDir, text: str) -> None:
    """The lock alone decides."""
    run.owner.write_text(text)
    assert owner(run) is None
    with owned(run):
        found = owner(run)
        assert found is not None
        assert found.pid == os.getpid()


@pytest.mark.parametrize("how", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_in_the_folder_this_machine_still_has_one_owner(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: int
) -> None:
    """And it is said aloud that other machines are not kept out."""
    acquire = FileLock.acquire

    def acquired(self: FileLock, *args: object, **values: object) -> object:
        if self.lock_file == str(run.lock):
            raise OSError(how, os.strerror(how))
        return acquire(self, *args, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(FileLock, "acquire", acquired)
    with caplog.at_level(logging.WARNING), owned(run):
        assert "has no locks" in caplog.text
        with pytest.raises(RunOwned), owned(run):
            pass
    with owned(run):
        pass


def test_a_read_only_folder_is_said_as_it_is(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no want of locks."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(run.lock))

    monkeypatch.setattr(FileLock, "acquire", refused)
    with pytest.raises(OSError, match="Read-only"), owned(run):
        pass
