"""A machine that can sleep."""

from __future__ import annotations

from fluxguard.clock import FakeClock
from fluxguard.guard.watcher import OpenWaits


class Machine:
    """A machine that can sleep, and the awake time of a process on it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = OpenWaits(self.clock.monotonic())
        self.run(0)

    def run(self, seconds: float) -> None:
        """Let `seconds` pass in which the watcher ticks."""
        self.waits.tick(self.clock.now)
        end = self.clock.now + seconds
        while (left := end - self.clock.now) > 0:
            self.clock.jump(min(left, self.waits.pause(self.clock.now)))
            self.waits.tick(self.clock.now)
        self.waits.pause(self.clock.now)

    def awake(self) -> float:
        """Return awake time."""
        return self.clock.now - self.waits.lost(self.clock.now)
