"""Whether a thread or a process has read or written anything, and for how long it has not.

The kernel's own counters say so (proc_pid_io(5)), where there are any; elsewhere a limit counts from the beginning.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_ROOM = 4096
_COUNTERS = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")

TICK = 1.0
"""Seconds between two looks at a read; one that is over by the first is not looked at at all."""
_TICKS = 25  # in a limit, at least: so much of it, a twenty-fifth or a second, may it be late
SHORT = _TICKS * TICK
"""A limit below this one is looked at more often."""

_publishing: set[int] = set()


def tick(limit: float) -> float:
    """Return how often to look at the progress of a read, in seconds: a few times in its limit."""
    return min(TICK, limit / _TICKS)


class Silence:
    """How long a read has got nothing: its limit counts from its last new byte. Knows no clock."""

    __slots__ = ("began", "last", "limit", "longest")

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.began = self.last = now
        self.longest = 0.0
        """The longest silence that ended, in seconds: what a read of this file may well need again."""

    def heard(self, now: float) -> None:
        """Note that something came since the last look."""
        self.longest = max(self.longest, now - self.last)
        self.last = now

    def left(self, now: float) -> float:
        """Return the seconds that are left; 0 or less when the limit has passed."""
        return self.last + self.limit - now


@contextlib.contextmanager
def publishing() -> Iterator[None]:
    """Count this thread as moving in a block: making a file durable moves no counter, however long it takes."""
    thread = threading.get_native_id()
    if thread in _publishing:
        yield
        return
    _publishing.add(thread)
    try:
        yield
    finally:
        _publishing.discard(thread)


class _Moved:
    """The bytes that somebody has read and written."""

    def __init__(self, path: str, *, own: bool) -> None:
        self._path = path
        self._own = own
        self._seen = self._look()

    def moved(self) -> bool:
        """Return whether anything was read or written since the last look; False where the platform does not say."""
        before, self._seen = self._seen, self._look()
        return self._seen[0] > before[0] + before[1]  # one that has vanished counts nothing

    def _look(self) -> tuple[int, int]:
        """Return a number that grows with every byte moved, and how much this look itself adds to it."""
        try:
            fd = os.open(self._path, os.O_RDONLY)
            try:
                text = os.read(fd, _ROOM)
            finally:
                os.close(fd)
            values = dict(line.split(b": ") for line in text.splitlines())
            total = sum(int(values[name]) for name in _COUNTERS)
        except (OSError, ValueError, KeyError):
            return 0, 0
        return total, len(text) if self._own else 0


class ThreadMoved(_Moved):
    """The bytes that one thread of this process has read and written; in `publishing` it always has."""

    def __init__(self, thread: int, *, own: bool = False) -> None:
        super().__init__(f"/proc/self/task/{thread}/io", own=own)
        self._thread = thread

    def moved(self) -> bool:
        """Return as its base does; True while the thread makes a file durable."""
        return super().moved() or self._thread in _publishing


class ProcessMoved(_Moved):
    """The bytes that all threads of another process have read and written."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"/proc/{pid}/io", own=False)
