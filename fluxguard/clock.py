"""Time as an object, so that whoever owns a loop can be given another one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a loop may ask of time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes backwards, comparable between processes of one boot."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for people."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


class FakeClock:
    """A clock that only moves when told to, or when somebody sleeps on it; for tests."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.now

    def wall(self) -> float:
        """Return the same virtual seconds, counted from a fixed date."""
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        """Move time on at once."""
        self.now += seconds

    def jump(self, seconds: float) -> None:
        """Move time on as a suspended machine does: nobody slept."""
        self.now += seconds
