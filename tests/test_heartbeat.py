"""Laws of the heartbeat."""

import math
import os
import random
import struct
import zlib
from pathlib import Path

import pytest

from fluxguard.heartbeat import DONE, FAILED, NOTE_SIZE, OPEN, SIZE, Collective, Heart, read, unpack

LONGEST = ("longest_swap", "longest_batch", "longest_first_batch", "longest_read", "longest_barrier")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """A reader sees every field that the writer set."""
    heart = Heart(tmp_path / "beat.0", rank=3, attempt=bytes(range(16)))
    heart.step, heart.total, heart.epoch, heart.batch, heart.loss = 12, 40, 2, 5, 0.25
    heart.phase, heart.wait, heart.deadline = b"sampling", b"block swap", 9.5
    heart.beat()
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert (seen.step, seen.total, seen.epoch, seen.batch, seen.loss) == (12, 40, 2, 5, 0.25)
    assert (seen.phase, seen.wait, seen.deadline, seen.rank) == ("sampling", "block swap", 9.5, 3)
    assert (seen.pid, seen.attempt, seen.beats) == (os.getpid(), bytes(range(16)), 2)


def test_counts_of_troubles_are_read(tmp_path: Path) -> None:
    """And bytes beyond four gigabytes."""
    heart = Heart(tmp_path / "beat.0")
    heart.retries, heart.ooms, heart.unstepped, heart.unsampled, heart.done = 1, 2, 3, 4, 24_000_000_000
    heart.beat()
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert (seen.retries, seen.ooms, seen.unstepped, seen.unsampled, seen.done) == (1, 2, 3, 4, 24_000_000_000)


def test_the_longest_waits_are_read(tmp_path: Path) -> None:
    """None before the first; each is a field of its own."""
    heart = Heart(tmp_path / "beat.0")
    before = read(tmp_path / "beat.0")
    assert before is not None
    assert [getattr(before, name) for name in LONGEST] == [0.0] * 5
    for seconds, name in enumerate(LONGEST, 1):
        setattr(heart, name, float(seconds))
        assert getattr(heart, name) == seconds
    heart.beat()
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert [getattr(seen, name) for name in LONGEST] == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("version", "layout", "more"),
    [(1, "<4sHHI16sdQIIIId16sdII32sdd", ()), (2, "<4sHHI16sdQIIIId16sdQQ32sddIIII", (6, 7, 8, 9))],
)
def test_a_record_of_an_older_guard_is_read(tmp_path: Path, version: int, layout: str, more: tuple[int, ...]) -> None:
    """A run keeps its hardened copy when its supervisor becomes newer."""
    known = (b"FGHB", version, 3, 77, bytes(16), 5.0, 9, 12, 40, 2, 5, 8.0, b"sampling", 7.0, 1, 4, b"", math.inf, 0.25)
    body = struct.pack(layout, *known, *more)
    path = tmp_path / "beat.0"
    path.write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    seen = read(path)
    assert seen is not None
    assert (seen.pid, seen.step, seen.phase, seen.done, seen.of, seen.loss) == (77, 12, "sampling", 1, 4, 0.25)
    assert (seen.retries, seen.ooms, seen.unstepped, seen.unsampled) == (more or (0, 0, 0, 0))
    assert [getattr(seen, name) for name in LONGEST] == [0.0] * 5
    assert seen.collective is None


def test_a_record_without_a_note_is_read(tmp_path: Path) -> None:
    """A guard from before the notes wrote the same record, and nothing behind it."""
    heart = Heart(tmp_path / "beat.0")
    heart.note(41, b"barrier", b"end of epoch", 5.0)
    heart.beat()
    path = tmp_path / "older"
    path.write_bytes((tmp_path / "beat.0").read_bytes()[:SIZE])
    seen = read(path)
    assert seen is not None
    assert (seen.beats, seen.collective) == (2, None)


def test_a_note_is_read(tmp_path: Path) -> None:
    """With every field, and without a beat after it."""
    heart = Heart(tmp_path / "beat.0")
    before = read(tmp_path / "beat.0")
    assert before is not None
    assert before.collective is None
    heart.note(41, b"metric", b"fid.compute", 5.5, OPEN, 43, 2)
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert seen.collective == Collective(
        sequence=41, kind="metric", what="fid.compute", at=5.5, open=True, begun=43, depth=2
    )


@pytest.mark.parametrize(("state", "flags"), [(OPEN, (True, False)), (DONE, (False, False)), (FAILED, (False, True))])
def test_a_note_says_what_has_become_of_it(tmp_path: Path, state: int, flags: tuple[bool, bool]) -> None:
    """It goes on, it ended well, or with an error."""
    heart = Heart(tmp_path / "beat.0")
    heart.note(1, b"barrier", b"", 5.5, state)
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert seen.collective is not None
    assert (seen.collective.open, seen.collective.failed) == flags


def test_beats_and_notes_leave_each_other_alone(tmp_path: Path) -> None:
    """Each is written at moments of its own."""
    heart = Heart(tmp_path / "beat.0")
    heart.note(1, b"barrier", b"caches", 5.5)
    heart.step = 9
    heart.beat()
    heart.note(2, b"barrier", b"epoch", 6.5)
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert seen.collective is not None
    assert (seen.step, seen.collective.what) == (9, "epoch")


@pytest.mark.parametrize("bit", range(SIZE * 8, (SIZE + NOTE_SIZE) * 8, 31))
def test_a_damaged_note_is_left_out(tmp_path: Path, bit: int) -> None:
    """And the beat before it stays good."""
    heart = Heart(tmp_path / "beat.0")
    heart.note(41, b"barrier", b"end of epoch", 5.0)
    record = bytearray((tmp_path / "beat.0").read_bytes())
    record[bit // 8] ^= 1 << (bit % 8)
    (tmp_path / "damaged").write_bytes(record)
    seen = read(tmp_path / "damaged")
    assert seen is not None
    assert seen.collective is None


def test_a_record_survives_its_writer(tmp_path: Path) -> None:
    """What the last beat said can be read when nobody writes any more."""
    heart = Heart(tmp_path / "beat.0")
    heart.step = 7
    heart.beat()
    del heart
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert seen.step == 7


def test_arbitrary_bytes_are_no_beat() -> None:
    """Random, short, empty and bit-flipped records are None, and raise nothing."""
    chance = random.Random(7)
    for length in (0, 1, 4, SIZE - 1, SIZE, SIZE + 100):
        for _ in range(200):
            assert unpack(b"FGHB" + chance.randbytes(length)) is None
            assert unpack(chance.randbytes(length)) is None


@pytest.mark.parametrize("bit", range(0, SIZE * 8, 37))
def test_one_flipped_bit_is_no_beat(tmp_path: Path, bit: int) -> None:
    """A torn or damaged record is never mistaken for a good one."""
    Heart(tmp_path / "beat.0")
    record = bytearray((tmp_path / "beat.0").read_bytes())
    assert unpack(bytes(record)) is not None
    record[bit // 8] ^= 1 << (bit % 8)
    assert unpack(bytes(record)) is None


def test_a_missing_folder_mutes(tmp_path: Path) -> None:
    """Nowhere to write means no beats, not an error."""
    heart = Heart(tmp_path / "gone" / "beat.0")
    heart.beat()
    assert heart.muted
    assert read(tmp_path / "gone" / "beat.0") is None


def test_a_full_disk_mutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for the record is met before the first beat, and mutes."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    heart = Heart(tmp_path / "beat.0")
    heart.beat()
    assert heart.muted


def test_a_vanished_file_harms_nobody(tmp_path: Path) -> None:
    """Beats go on without an error after the file was removed."""
    heart = Heart(tmp_path / "beat.0")
    (tmp_path / "beat.0").unlink()
    heart.beat()
    assert read(tmp_path / "beat.0") is None


def test_a_new_process_takes_the_place(tmp_path: Path) -> None:
    """The writer before cannot overwrite what its successor says."""
    old = Heart(tmp_path / "beat.0", attempt=bytes(16))
    new = Heart(tmp_path / "beat.0", attempt=bytes([1] * 16))
    old.step = 99
    old.beat()
    seen = read(tmp_path / "beat.0")
    assert seen is not None
    assert seen.attempt == new.attempt
    assert seen.step == 0
