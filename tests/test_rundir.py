"""Laws of the run directory."""

import os
import stat
from pathlib import Path

import pytest

from fluxguard.rundir import RunDir, read_json, write_json, write_whole


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader never sees a part, and no temporary file is left."""
    path = tmp_path / "job.json"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', "null"])
def test_a_foreign_file_reads_as_none(tmp_path: Path, text: str) -> None:
    """Broken or of another version is the same as missing."""
    path = tmp_path / "job.json"
    path.write_text(text)
    assert read_json(path) is None
    assert read_json(tmp_path / "none.json") is None


def test_the_run_directory_is_closed_to_others(tmp_path: Path) -> None:
    """Mode 0700, also when somebody had made it wider."""
    run = RunDir(tmp_path)
    run.root.mkdir(mode=0o755)
    run.create()
    if os.name != "nt":
        assert stat.S_IMODE(run.root.stat().st_mode) == 0o700


def test_readers_find_the_heartbeats_where_the_writer_put_them(tmp_path: Path) -> None:
    """The folder in run.json counts, on any machine."""
    run = RunDir(tmp_path)
    run.create()
    write_json(run.run, {"beats": str(tmp_path / "elsewhere")})
    assert run.beats() == tmp_path / "elsewhere"
