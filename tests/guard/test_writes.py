"""Laws of writing: a file is whole under its name, or it is what it was before."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluxguard.guard import progress, writes
from fluxguard.guard.writes import saved, whole

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")


@pytest.fixture(autouse=True)
def _first_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "_cleaned", set())


def put(data: bytes, path: str | os.PathLike[str], metadata: object = None) -> str:
    """Write as a library does: in place."""
    Path(path).write_bytes(data)
    return "put"


def leftovers(folder: Path) -> list[str]:
    """Return what a write has left in a folder besides its file."""
    return [path.name for path in folder.iterdir() if path.name.startswith(writes.PREFIX)]


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    """The result of the writer comes back."""
    path = tmp_path / "lora.safetensors"
    assert whole(put)(b"new", path, {}) == "put"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["lora.safetensors"]


def test_until_the_end_the_old_file_is_there(tmp_path: Path) -> None:
    """Under the name there is never a part, and meanwhile no name that a trainer takes for a cache."""
    path = tmp_path / "image.npz"
    path.write_bytes(b"old")
    with saved(path) as temporary:
        Path(temporary).write_bytes(b"ne")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.glob("*.npz")) == [path]
        assert Path(temporary).name == path.name
    assert path.read_bytes() == b"ne"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    """A full disk costs nothing that was there, and its error passes through."""
    path = tmp_path / "image.npz"
    path.write_bytes(b"old")

    def fill(file: str) -> None:
        Path(file).write_bytes(b"n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        whole(fill)(str(path))
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_numpy_writes_the_same_bytes_and_adds_its_suffix(tmp_path: Path) -> None:
    """Caches of hardened and other trainers are the same files."""
    arrays: dict[str, Any] = {"latents_8x8": np.arange(64.0).reshape(8, 8), "original_size_8x8": np.array([64, 64])}
    np.savez(tmp_path / "plain.npz", **arrays)
    whole(np.savez)(str(tmp_path / "ours.npz"), **arrays)
    whole(np.savez)(str(tmp_path / "bare"), **arrays)
    assert sorted(os.listdir(tmp_path)) == ["bare.npz", "ours.npz", "plain.npz"]
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_file_object_is_the_callers_own(tmp_path: Path) -> None:
    """Nothing is in the way of a writer that is given no path."""
    with (tmp_path / "a.npz").open("wb") as file:
        whole(np.savez)(file, a=np.zeros(1))
    assert np.load(tmp_path / "a.npz")["a"] == 0


def test_a_path_by_name_is_found(tmp_path: Path) -> None:
    """`filename=` is as good as a place."""

    def save_file(tensors: bytes, filename: Path) -> None:
        Path(filename).write_bytes(tensors)

    whole(save_file)(b"new", filename=tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == b"new"
    assert leftovers(tmp_path) == []


def test_another_keyword_is_data() -> None:
    """np.savez names arrays with them: a prompt is no path."""
    buffer = io.BytesIO()
    whole(np.savez)(buffer, prompt="a cat.png")
    buffer.seek(0)
    assert np.load(buffer)["prompt"] == "a cat.png"


@pytest.mark.parametrize("windows", [True, False])
def test_what_windows_will_not_rename_over_an_open_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool
) -> None:
    """A trainer reads a cache, leaves it open, and writes it again; elsewhere a refusal stays one."""
    path = tmp_path / "image.npz"
    path.write_bytes(b"older and longer")

    def refuse(source: str, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(writes, "_WINDOWS", windows)
    monkeypatch.setattr(writes, "replace", refuse)
    with contextlib.nullcontext() if windows else pytest.raises(PermissionError):
        whole(put)(b"new", path)
    assert path.read_bytes() == (b"new" if windows else b"older and longer")
    assert leftovers(tmp_path) == []


def test_a_write_counts_as_progress_while_it_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An fsync moves no counter, and a read alarm around it must not take it for a stuck read."""
    mine = progress.ThreadMoved(threading.get_native_id())
    monkeypatch.setattr(mine, "_look", lambda: (0, 0))
    seen: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(mine.moved()))
    with saved(tmp_path / "outer.npz") as temporary:
        whole(put)(b"inner", tmp_path / "a.npz")
        Path(temporary).write_bytes(b"outer")
    assert seen == [True, True]
    assert not mine.moved()


def test_a_name_without_a_folder_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative name means what it means without us."""
    monkeypatch.chdir(tmp_path)
    whole(put)(b"new", "lora.pt")
    assert os.listdir(tmp_path) == ["lora.pt"]


def test_a_missing_folder_is_missing(tmp_path: Path) -> None:
    """Nobody makes folders on the way."""
    with pytest.raises(FileNotFoundError):
        whole(put)(b"new", tmp_path / "none" / "a.npz")


@posix
def test_a_link_stays_a_link_and_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    """Data sets are often folders of links to a larger disk."""
    store = tmp_path / "store"
    store.mkdir()
    real = store / "abc"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link = tmp_path / "image.npz"
    link.symlink_to(real)
    whole(put)(b"new", link)
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640
    assert os.listdir(store) == ["abc"]


@posix
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    """Others may read a LoRA if the umask lets them."""
    (tmp_path / "plain").touch()
    whole(put)(b"new", tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode


@posix
def test_a_write_protected_file_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename would not ask; a write in place would have failed."""
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError):
        whole(put)(b"new", path)
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_a_folder_that_takes_nothing_new_is_written_to_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What worked before works still, and it is said that it is not protected."""
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")

    def refuse(**_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    whole(put)(b"new", path)
    assert path.read_bytes() == b"new"
    assert "cannot be written to" in caplog.text


@posix
def test_a_fifo_under_the_name_is_replaced_and_a_device_is_written_to(tmp_path: Path) -> None:
    """Opening a FIFO would wait for a reader for ever; /dev/null must stay what it is."""
    fifo = tmp_path / "a.npz"
    os.mkfifo(fifo)
    whole(put)(b"new", fifo)
    assert fifo.read_bytes() == b"new"
    whole(put)(b"new", os.devnull)
    assert Path(os.devnull).is_char_device()


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """It holds no lock any more; folders of somebody else are left alone."""
    left = tmp_path / f"{writes.PREFIX}x{writes.SUFFIX}"
    left.mkdir()
    (left / "image.npz").write_bytes(b"part")
    other = tmp_path / ".fluxguard"
    other.mkdir()
    if sys.platform == "win32":
        os.utime(left, (0, 0))
    whole(put)(b"new", tmp_path / "image.npz")
    assert sorted(os.listdir(tmp_path)) == [".fluxguard", "image.npz"]


@posix
def test_a_writer_that_lives_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks write into one folder at once."""
    with saved(tmp_path / "one.npz") as temporary:
        Path(temporary).write_bytes(b"one")
        monkeypatch.setattr(writes, "_cleaned", set())
        whole(put)(b"two", tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == b"one"


@posix
def test_a_folder_that_was_cleaned_up_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that starts to write may meet it in that moment."""
    lock = writes._lock
    met: list[str] = []

    def clean_first(folder: str) -> tuple[int | None, bool]:
        if not met:
            os.rmdir(folder)
        met.append(folder)
        return lock(folder)

    monkeypatch.setattr(writes, "_lock", clean_first)
    whole(put)(b"new", tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == b"new"
    assert len(met) == 2


@posix
def test_without_locks_only_what_is_old_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a share without locks nobody knows whether the writer lives."""
    monkeypatch.setattr(writes, "_lock", lambda _: (None, False))
    young, old = (tmp_path / f"{writes.PREFIX}{name}{writes.SUFFIX}" for name in ("young", "old"))
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    whole(put)(b"new", tmp_path / "a.npz")
    assert leftovers(tmp_path) == [young.name]
