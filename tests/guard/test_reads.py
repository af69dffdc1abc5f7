"""Laws of reading cache files."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
import zipfile
from pathlib import Path

import pytest

from fluxguard.errors import CacheBroken, DeadlineExceeded, WorkerStuck
from fluxguard.guard import alarm, broken, progress
from fluxguard.guard.reads import reads, rebuilds

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and FIFOs")


@reads
def load(path: str | os.PathLike[str]) -> bytes:
    """Read what a cache holds, as np.load does: an archive of arrays."""
    if os.path.getsize(path) == 0:
        raise EOFError("No data left in file")
    with zipfile.ZipFile(path) as archive:
        return archive.read("latents.npy")


@pytest.fixture(autouse=True, params=["signals", "no signals"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each law hold on the main thread, and where a thread of ours reads: on Windows, and on other threads."""
    if request.param == "no signals":
        monkeypatch.setattr(alarm, "_SIGNAL", None)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "image.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("latents.npy", b"\x93NUMPY" + bytes(5000))
    return path


def _broken(path: Path) -> Path:
    return path.with_name(path.name + ".broken")


def test_a_whole_file_is_read(cache: Path) -> None:
    """Nothing is in the way of a read that works."""
    assert load(cache).startswith(b"\x93NUMPY")
    assert cache.exists()


def test_a_truncated_file_is_named_and_set_aside(cache: Path) -> None:
    """The next attempt finds no file and makes it anew, instead of dying at it again."""
    cache.write_bytes(cache.read_bytes()[:2000])
    with pytest.raises(CacheBroken, match=r"image\.npz: is truncated or damaged.*set aside as image\.npz\.broken"):
        load(cache)
    assert not cache.exists()
    assert _broken(cache).exists()


def test_the_file_is_closed_before_it_is_set_aside(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of the reader's error hold it open, and Windows renames no open file."""
    held: list[bool] = []
    opened: list[weakref.ref[object]] = []
    rename = os.rename

    class File:
        pass

    @reads
    def leave_open(path: Path) -> None:
        file = File()
        opened.append(weakref.ref(file))
        raise EOFError

    def look(source: str, target: str) -> None:
        held.append(opened[0]() is not None)
        rename(source, target)

    monkeypatch.setattr(os, "rename", look)
    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match="set aside"):
        leave_open(cache)
    assert held == [False]


def test_written_bytes_are_progress(tmp_path: Path) -> None:
    """A function that reads a cache may write it again."""
    counters = tmp_path / "io"
    counters.write_text("rchar: 5\nwchar: 5\nsyscr: 1\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\n")
    moved = progress._Moved(str(counters), own=False)
    assert not moved.moved()
    for name in ("rchar: 5", "wchar: 5", "read_bytes: 0", "write_bytes: 0"):
        counters.write_text(counters.read_text().replace(name, name + "7"))
        assert moved.moved()
        assert not moved.moved()
    counters.write_text(counters.read_text().replace("syscw: 1", "syscw: 2"))
    assert not moved.moved()


def test_where_nothing_is_counted_nothing_moves(tmp_path: Path) -> None:
    """On other systems than Linux a limit counts from the beginning of the read."""
    moved = progress._Moved(str(tmp_path / "none"), own=False)
    assert not moved.moved()
    silence = progress.Silence(8, now=100)
    assert silence.left(107) == 1
    silence.heard(107)
    assert (silence.left(107), silence.longest) == (8, 7)


def test_an_empty_file_is_set_aside(cache: Path) -> None:
    """A kill right after the open leaves an empty file."""
    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match="is empty"):
        load(cache)


def test_a_flipped_byte_is_found_by_the_crc(cache: Path) -> None:
    """Damage inside a member shows only when that member is read."""
    raw = bytearray(cache.read_bytes())
    raw[1000] ^= 1
    cache.write_bytes(raw)
    with pytest.raises(CacheBroken, match="CRC"):
        load(cache)


def test_an_older_broken_file_is_kept(cache: Path) -> None:
    """Setting aside never overwrites evidence."""
    _broken(cache).write_text("older")
    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match=r"image\.npz\.broken\.2"):
        load(cache)
    assert _broken(cache).read_text() == "older"


def test_an_error_about_a_whole_file_is_left_through(cache: Path) -> None:
    """A missing member, or a reader's own mistake, proves nothing about the file."""

    @reads
    def mistaken(path: Path) -> None:
        raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ"):
        mistaken(cache)
    assert cache.exists()


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    """What is not there is not broken."""
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")


def test_a_users_image_is_never_set_aside(tmp_path: Path) -> None:
    """Only what a trainer can make again is moved."""
    image = tmp_path / "image.png"
    image.write_bytes(b"")
    with pytest.raises(EOFError):
        load(image)
    assert image.exists()


@pytest.mark.parametrize("error", [RuntimeError("hidden"), KeyError("latents"), TypeError(), MemoryError()])
def test_an_error_of_any_kind_asks_whether_the_file_is_broken(cache: Path, error: Exception) -> None:
    """Somebody's own guard may turn the reader's error into another one; the file answers, not the error."""
    cache.write_bytes(cache.read_bytes()[:2000])
    with pytest.raises(CacheBroken, match="truncated"), reads(cache):
        raise error


@posix
def test_a_fifo_is_broken_at_once_and_never_opened(tmp_path: Path) -> None:
    """An open of a FIFO would wait for a writer for ever."""
    fifo = tmp_path / "image.npz"
    os.mkfifo(fifo)
    with pytest.raises(CacheBroken, match="is a FIFO"):
        load(fifo)
    assert _broken(fifo).exists()


def test_a_folder_is_refused_and_left(tmp_path: Path) -> None:
    """A folder is somebody's, whatever its name says."""
    with pytest.raises(CacheBroken, match="is a folder"):
        load(tmp_path)
    assert tmp_path.exists()


@posix
def test_a_device_is_refused() -> None:
    """What it delivers may never end, or never come."""
    with pytest.raises(CacheBroken, match="is a device or a socket, not a regular file"):
        load("/dev/null")
    assert os.path.exists("/dev/null")


def test_a_folder_under_the_name_of_a_cache_is_set_aside(cache: Path) -> None:
    """Nothing else would ever let the trainer make the file; what is in the folder stays in it."""
    cache.unlink()
    cache.mkdir()
    (cache / "kept").touch()
    with pytest.raises(CacheBroken, match="is a folder"):
        load(cache)
    assert (_broken(cache) / "kept").exists()


@rebuilds
def is_cached(path: Path) -> bool:
    """Check a cache as trainers do: missing is no error."""
    if not path.exists():
        return False
    with zipfile.ZipFile(path) as archive:
        return "latents.npy" in archive.namelist()


def test_a_check_of_a_whole_file_says_so(cache: Path) -> None:
    """Nothing is in the way of a check that works."""
    assert is_cached(cache)


def test_a_check_of_a_broken_file_finds_nothing_cached(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So the trainer makes it anew in the same attempt; the file is named all the same."""
    cache.write_bytes(cache.read_bytes()[:2000])
    assert not is_cached(cache)
    assert _broken(cache).exists()
    assert "image.npz: is truncated or damaged" in caplog.text


@posix
def test_a_check_of_a_fifo_finds_nothing_cached(cache: Path) -> None:
    """It is never opened."""
    cache.unlink()
    os.mkfifo(cache)
    assert not is_cached(cache)


def test_a_broken_file_that_cannot_be_set_aside_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called again, the check meets the same file; the error says what to do."""

    def refuse(source: str, target: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match=r"could not be set aside \(Permission denied\), remove it by hand"):
        is_cached(cache)


def test_of_two_processes_that_meet_a_broken_file_the_second_finds_it_gone(cache: Path) -> None:
    """The first has set it aside between the second's look and its read: that is no missing file."""
    cache.rename(_broken(cache))
    with pytest.raises(CacheBroken, match=r"was found broken and set aside as image\.npz\.broken"):
        load(cache)


def test_a_check_that_loses_its_file_to_another_process_asks_again(cache: Path) -> None:
    """The file was there when it looked, and was set aside before it read."""

    @rebuilds
    def check(path: Path) -> bool:
        if not path.exists():
            return False
        path.rename(_broken(path))
        return bool(path.read_bytes())

    assert not check(cache)


def test_a_file_made_anew_by_another_process_is_not_set_aside(cache: Path) -> None:
    """What was judged is not what lies there now."""
    judged = broken.look(str(cache))
    again = cache.with_name("new")
    again.write_bytes(cache.read_bytes())
    again.replace(cache)
    assert "another process" in str(broken.set_aside(str(cache), "is empty", judged))
    assert cache.exists()


def test_a_read_that_only_takes_too_long_proves_nothing(cache: Path) -> None:
    """A broken file is left, and unread, when the wait for it is what failed."""
    cache.write_bytes(b"")
    with pytest.raises(DeadlineExceeded), reads(cache):
        raise DeadlineExceeded("reading", 3.0)
    assert cache.exists()


def test_the_file_of_a_method_is_its_first_path(cache: Path) -> None:
    """Neither self nor a resolution nor a plain word is a file."""

    class Strategy:
        @reads
        def load(self, resolution: tuple[int, int], kind: str, npz_path: str) -> None:
            raise EOFError

    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match="empty"):
        Strategy().load((64, 64), "latents", npz_path=str(cache))


def test_a_block_is_guarded_as_a_function_is(cache: Path) -> None:
    """`with reads(path)` is the same guard."""
    cache.write_bytes(b"")
    with pytest.raises(CacheBroken), reads(cache):
        raise EOFError


def test_a_word_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is given no path is called as it is."""
    monkeypatch.setattr("fluxguard.guard.reads._read", None)
    assert reads(lambda word, number=0: (word, number))("latents", number=3) == ("latents", 3)


def test_other_threads_read_without_an_alarm(cache: Path) -> None:
    """signal.signal would raise off the main thread."""
    seen: list[bytes] = []
    thread = threading.Thread(target=lambda: seen.append(load(cache)))
    thread.start()
    thread.join(5)
    assert seen


@pytest.mark.parametrize(
    "error",
    [CacheBroken("a.npz", "is empty"), DeadlineExceeded("a wait", 3.0), WorkerStuck(3.0, [12], [[1, 2]])],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_between_processes(error: Exception) -> None:
    """What was told about the file, the wait or the workers is still there."""
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


@pytest.mark.parametrize("kind", [CacheBroken, DeadlineExceeded])
def test_torch_can_make_the_error_again_from_its_message(kind: type[Exception]) -> None:
    """torch makes an exception of a worker again from one string."""
    assert str(kind("Caught it in worker 0: image.npz is empty")) == "Caught it in worker 0: image.npz is empty"
