"""Whether a thread or a process has read anything: the kernel's own counters, where there are any."""

from __future__ import annotations

import os

_ROOM = 4096


class _Reads:
    """What somebody has read."""

    def __init__(self, path: str, *, own: bool) -> None:
        self._path = path
        self._own = own
        self._seen = self._look()

    def moved(self) -> bool:
        """Return whether anything was read since the last look; False where the platform does not say."""
        before, self._seen = self._seen, self._look()
        return self._seen[0] != before[0] + before[1]

    def _look(self) -> tuple[int, int]:
        """Return a number that grows with everything read, and how much this look itself adds to it."""
        try:
            fd = os.open(self._path, os.O_RDONLY)
            try:
                text = os.read(fd, _ROOM)
            finally:
                os.close(fd)
            values = dict(line.split(b": ") for line in text.splitlines())
            total = int(values[b"rchar"]) + int(values[b"read_bytes"])
        except (OSError, ValueError, KeyError):
            return 0, 0
        return total, len(text) if self._own else 0


class ThreadReads(_Reads):
    """What one thread of this process has read."""

    def __init__(self, thread: int, *, own: bool = False) -> None:
        super().__init__(f"/proc/self/task/{thread}/io", own=own)


class ProcessReads(_Reads):
    """What all threads of another process have read."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"/proc/{pid}/io", own=False)
