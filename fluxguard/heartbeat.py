"""The heartbeat: one fixed-size record per rank that says where the trainer is, readable after its death.

The record lies in a small file of a memory file system and is written through a mapping, not a system call: that
halves the cost of a beat, and a file system that fills up or vanishes later cannot reach the trainer, because every
page is allocated before the first beat. A CRC over the whole record makes a torn or foreign one unreadable instead
of wrong. Behind the record lies a second, smaller one, with a CRC of its own, that says at which collective the rank
is: it is written at other moments, so that neither costs the other anything, and readers that do not know it see the
first one as ever.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"FGHB"
_VERSION = 3
_BODIES = {
    1: struct.Struct("<4sHHI16sdQIIIId16sdII32sdd"),
    2: struct.Struct("<4sHHI16sdQIIIId16sdQQ32sddIIII"),
    3: struct.Struct("<4sHHI16sdQIIIId16sdQQ32sddIIII5d"),
}
"""By version: a run keeps its hardened copy, so that a newer supervisor meets an older guard."""
_BODY = struct.Struct("<4sHHI16sdQIIIId16sdQQ32sddIIII40s")
"""The newest as it is written, the longest waits packed already: they seldom change, and each value costs a beat."""
_LONGEST = struct.Struct("<5d")
_HEAD = struct.Struct("<4sH")
_CRC = struct.Struct("<I")
SIZE = _BODY.size + _CRC.size
"""Bytes of one record; older versions are shorter."""
_NOTE_MAGIC = b"FGNC"
_NOTE_VERSION = 1
_NOTE = struct.Struct("<4sHHQQd16s64sH")
NOTE_SIZE = _NOTE.size + _CRC.size
"""Bytes of the note about a collective, right behind the record."""
_FILE = SIZE + NOTE_SIZE
DONE, OPEN, FAILED = range(3)
"""What has become of a collective."""

_SINCE_2 = ("retries", "ooms", "unstepped", "unsampled")
_SINCE_3 = ("longest_swap", "longest_batch", "longest_first_batch", "longest_read", "longest_barrier")

_READS = 3  # a reader that meets a record in the middle of being written looks again at once


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The collective that a rank is in, or the last one it was in: something that all ranks do together."""

    sequence: int
    """Its number among those of this rank, counted from 1; ranks that agree give the same one the same number."""
    kind: str
    """Which sort of meeting it is, such as "barrier"."""
    what: str
    """What it is for, in the caller's word."""
    at: float
    """Monotonic seconds when it began."""
    open: bool
    """Whether it goes on."""
    failed: bool = False
    """Whether it ended with an error."""
    begun: int = 0
    """The number of the last one that began: one within another has a higher number, and ends first."""
    depth: int = 0
    """How many go on, one within the other."""

    @property
    def place(self) -> tuple[int, int]:
        """How far the rank has come: more begun, or as many and fewer of them open, is further."""
        return self.begun or self.sequence, -self.depth


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One record of the heartbeat."""

    pid: int
    """The process that trains (not its launcher)."""
    started: float
    """When that process started, seconds since the epoch; 0 where the platform does not say."""
    rank: int
    """Its rank among all trainer processes."""
    attempt: bytes
    """The uuid of the attempt, 16 bytes; zeros without a supervisor."""
    beats: int
    """How many beats were written before this one."""
    step: int
    """Optimizer steps embodied in the weights, counted over all attempts."""
    total: int
    """Planned optimizer steps; 0 when not known yet."""
    epoch: int
    """The epoch, counted from 1; 0 before the first."""
    batch: int
    """Batches trained in this epoch."""
    at: float
    """Monotonic seconds when this beat was written."""
    phase: str
    """What the trainer is doing; one of `limits.PHASES`."""
    phase_at: float
    """Monotonic seconds when the phase began."""
    done: int
    """Items done in this phase (bytes, while hashing); 0 when it does not count."""
    of: int
    """Items to do in this phase; 0 when it does not count."""
    wait: str
    """The wait that is open; empty when none is."""
    deadline: float
    """Monotonic seconds at which the open wait is over its limit; infinite without one."""
    loss: float
    """The last loss; NaN before the first."""
    retries: int = 0
    """How often the GPU's allocator had to give back what it held and try again: memory is nearly full."""
    ooms: int = 0
    """How often it failed even then, and the trainer went on."""
    unstepped: int = 0
    """Steps in which an optimizer of several never stepped."""
    unsampled: int = 0
    """Sample images that failed."""
    longest_swap: float = 0.0
    """Seconds of the longest block swap that was completed; 0 before the first, as in the next four."""
    longest_batch: float = 0.0
    """The same of a batch from the loader."""
    longest_first_batch: float = 0.0
    """The same of the first batch of a loader."""
    longest_read: float = 0.0
    """The same of a time without a new byte in a read."""
    longest_barrier: float = 0.0
    """The same of a barrier."""
    collective: Collective | None = None
    """The collective that it is in, or was in last; None before the first, from an older guard, or when unreadable."""


def unpack(record: bytes) -> Beat | None:
    """Return the beat in `record`, or None when it is torn, foreign, or of an unknown version.

    What lies behind it is the note about a collective; one that cannot be trusted is left out.
    """
    if len(record) < _HEAD.size or not record.startswith(_MAGIC):
        return None
    layout = _BODIES.get(_HEAD.unpack_from(record)[1])
    if layout is None or len(record) < layout.size + _CRC.size:
        return None
    body, crc = record[: layout.size], record[layout.size : layout.size + _CRC.size]
    if _CRC.unpack(crc)[0] != zlib.crc32(body):
        return None
    (_, _, rank, pid, attempt, started, beats, step, total, epoch, batch, at, *rest) = layout.unpack(body)
    phase, phase_at, done, of, wait, deadline, loss, *later = rest
    return Beat(
        pid=pid,
        started=started,
        rank=rank,
        attempt=attempt,
        beats=beats,
        step=step,
        total=total,
        epoch=epoch,
        batch=batch,
        at=at,
        phase=_text(phase),
        phase_at=phase_at,
        done=done,
        of=of,
        wait=_text(wait),
        deadline=deadline,
        loss=loss,
        **dict(zip(_SINCE_2 + _SINCE_3, later, strict=False)),
        collective=_unpack_note(record[SIZE : SIZE + NOTE_SIZE]),
    )


def _unpack_note(record: bytes) -> Collective | None:
    if len(record) < NOTE_SIZE or not record.startswith(_NOTE_MAGIC):
        return None
    body, crc = record[: _NOTE.size], record[_NOTE.size :]
    _, version, state, sequence, begun, at, kind, what, depth = _NOTE.unpack(body)
    if version != _NOTE_VERSION or _CRC.unpack(crc)[0] != zlib.crc32(body):
        return None
    return Collective(
        sequence=sequence,
        kind=_text(kind),
        what=_text(what),
        at=at,
        open=state == OPEN,
        failed=state == FAILED,
        begun=begun,
        depth=depth,
    )


def _torn(record: bytes, beat: Beat) -> bool:
    """Whether a note is there and was being written while it was read."""
    return beat.collective is None and record[SIZE : SIZE + len(_NOTE_MAGIC)] == _NOTE_MAGIC


def read(path: str | os.PathLike[str]) -> Beat | None:
    """Return the last beat written to `path`, or None when there is none that can be trusted."""
    beat = None
    for _ in range(_READS):
        try:
            with open(path, "rb", buffering=0) as file:
                record = file.read(SIZE + NOTE_SIZE) or b""
        except OSError:
            return None
        beat = unpack(record) or beat
        if beat is not None and not _torn(record, beat):
            return beat
    return beat


def path_for(folder: str | os.PathLike[str], rank: int) -> Path:
    """Return where the heartbeat of `rank` lies in the heartbeat folder of a run."""
    return Path(folder) / f"beat.{rank}"


def ranks(folder: str | os.PathLike[str]) -> list[int]:
    """Return the ranks that have a heartbeat file in the heartbeat folder of a run, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (name.removeprefix("beat.") for name in names if name.startswith("beat."))
    return sorted(int(rank) for rank in found if rank.isdigit())


class _Longest:
    """One of the longest waits of a heart; setting it packs them all."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, heart: Heart, owner: type[Heart] | None = None) -> float:
        return heart._longest[self._index]

    def __set__(self, heart: Heart, seconds: float) -> None:
        heart._longest[self._index] = float(seconds)
        heart._longest_packed = _LONGEST.pack(*heart._longest)


class Heart:
    """Writes the heartbeat of this process; the first OSError mutes it for good, because a beat must never harm."""

    __slots__ = (
        "_longest",
        "_longest_packed",
        "_map",
        "_pid",
        "attempt",
        "batch",
        "beats",
        "deadline",
        "done",
        "epoch",
        "loss",
        "of",
        "ooms",
        "phase",
        "phase_at",
        "rank",
        "retries",
        "started",
        "step",
        "total",
        "unsampled",
        "unstepped",
        "wait",
    )

    longest_swap = _Longest(0)
    longest_batch = _Longest(1)
    longest_first_batch = _Longest(2)
    longest_read = _Longest(3)
    longest_barrier = _Longest(4)

    def __init__(self, path: str | os.PathLike[str], *, rank: int = 0, attempt: bytes = bytes(16)) -> None:
        self._map: mmap.mmap | None = None
        self._pid = os.getpid()
        self.started = process_started()
        self.rank = rank
        self.attempt = attempt
        self.beats = self.step = self.total = self.epoch = self.batch = self.done = self.of = 0
        self.retries = self.ooms = self.unstepped = self.unsampled = 0
        self._longest = [0.0] * len(_SINCE_3)
        self._longest_packed = _LONGEST.pack(*self._longest)
        self.phase = b"load"
        self.phase_at = time.monotonic()
        self.wait = b""
        self.deadline = math.inf
        self.loss = math.nan
        # The mute is by design: a full disk or a missing folder costs the beat, never the training.
        with contextlib.suppress(OSError, ValueError):
            self._map = _mapped(path)
        self.beat()

    @property
    def muted(self) -> bool:
        """Whether nothing is written any more."""
        return self._map is None

    def mute(self) -> None:
        """Write nothing any more; for forked children, whose copy would lie about the parent."""
        self._map = None

    def beat(self) -> None:
        """Write one record of the fields as they are now."""
        if self._map is None:
            return
        self.beats += 1
        body = _BODY.pack(
            _MAGIC,
            _VERSION,
            self.rank,
            self._pid,
            self.attempt,
            self.started,
            self.beats,
            self.step,
            self.total,
            self.epoch,
            self.batch,
            time.monotonic(),
            self.phase,
            self.phase_at,
            self.done,
            self.of,
            self.wait,
            self.deadline,
            self.loss,
            self.retries,
            self.ooms,
            self.unstepped,
            self.unsampled,
            self._longest_packed,
        )
        try:
            self._map[:SIZE] = body + _CRC.pack(zlib.crc32(body))
        except (OSError, ValueError):
            self._map = None

    def note(
        self, sequence: int, kind: bytes, what: bytes, at: float, state: int = OPEN, begun: int = 0, depth: int = 0
    ) -> None:
        """Write down at which collective this rank is; `state` is DONE, OPEN or FAILED, the rest as in `Collective`."""
        if self._map is None:
            return
        body = _NOTE.pack(_NOTE_MAGIC, _NOTE_VERSION, state, sequence, begun or sequence, at, kind, what, depth)
        try:
            self._map[SIZE:_FILE] = body + _CRC.pack(zlib.crc32(body))
        except (OSError, ValueError):
            self._map = None


def process_started() -> float:
    """Return when this process started, seconds since the epoch; 0 where that needs more than the standard library."""
    if not sys.platform.startswith("linux"):
        return 0.0
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0


def _mapped(path: str | os.PathLike[str]) -> mmap.mmap:
    """Return a mapping of a new file whose every page is allocated: a later write can meet no full file system."""
    fresh = f"{os.fspath(path)}.{os.getpid()}"
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    try:
        if os.write(fd, bytes(_FILE)) != _FILE:
            raise OSError("no room for a heartbeat")
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, _FILE)
        mapping = mmap.mmap(fd, _FILE)
    finally:
        os.close(fd)
    # A new file for each process: whoever still holds the old one keeps writing where nobody reads.
    os.replace(fresh, path)
    return mapping


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
