"""The alarm: the only thing that gets the main thread out of a system call, and it does so by raising.

One real-time timer per process, so an alarm of somebody else is not destroyed: it keeps its handler and its time,
and rings in the middle of ours if it is due then. Alarms of ours that nest share one timer.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines
from fluxguard.guard.progress import ThreadMoved
from fluxguard.guard.watcher import LATE

_TICK = 1.0  # a read that is over by then is never interrupted at all
_TICKS = 4  # in a limit, at least
_AT_ONCE = 1e-6


class _Timer:
    """The one real-time timer, while alarms of ours are open."""

    def __init__(self) -> None:
        self.open: list[Alarm] = []
        self._every = _TICK
        self._reads: ThreadMoved | None = None
        self._foreign: Any = None
        self._foreign_due: float | None = None
        self._foreign_every = 0.0

    def start(self, alarm: Alarm) -> None:
        self.open.append(alarm)
        if len(self.open) == 1:
            # The counters are first read at the first tick: a read that is over by then pays nothing for them.
            self._reads = None
            self._every = tick(alarm.limit)
            self._foreign = signal.signal(signal.SIGALRM, self._ring)
            left, self._foreign_every = signal.setitimer(signal.ITIMER_REAL, self._every, self._every)
            self._foreign_due = time.monotonic() + left if left else None

    def stop(self, alarm: Alarm) -> None:
        # First of all: a bell that rings from here on finds nobody to wake, and so cannot interrupt what follows.
        self.open.remove(alarm)
        if not self.open:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._foreign)
            if self._foreign_due is not None:
                left = max(_AT_ONCE, self._foreign_due - time.monotonic())
                signal.setitimer(signal.ITIMER_REAL, left, self._foreign_every)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._foreign_due is not None and now >= self._foreign_due:
            self._foreign_due = self._foreign_due + self._foreign_every if self._foreign_every else None
            if callable(self._foreign):
                self._foreign(number, frame)
        if not self.open:
            return
        deadlines.check()
        moved = True
        if self._reads is None:
            self._reads = ThreadMoved(threading.get_native_id(), own=True)
        else:
            moved = self._reads.moved()
        left = min(alarm.look(now, moved=moved) for alarm in list(self.open))
        if left < self._every:
            signal.setitimer(signal.ITIMER_REAL, left, self._every)


_timer = _Timer()


class Alarm:
    """A block of the main thread that is left by DeadlineExceeded when no byte was moved for `limit` seconds."""

    def __init__(self, what: str, limit: float, hint: str) -> None:
        self.limit = limit
        self._what = what
        self._hint = hint
        self._last = self._looked = 0.0

    def __enter__(self) -> Alarm:
        self._last = self._looked = time.monotonic()
        _timer.start(self)
        return self

    def __exit__(self, *_: object) -> None:
        _timer.stop(self)

    def look(self, now: float, *, moved: bool) -> float:
        """Take note of a tick and whether any byte moved since the last; return the seconds that are left.

        Raises DeadlineExceeded when none are.
        """
        late = now - self._looked - _TICK
        self._looked = now
        if moved:
            self._last = now
        elif late > LATE:
            self._last += late
        left = self._last + self.limit - now
        if left <= 0:
            raise DeadlineExceeded(self._what, self.limit, self._hint)
        return left


def tick(limit: float) -> float:
    """Return how often to look at the progress of a read: a few times in its limit."""
    return min(_TICK, limit / _TICKS)


def possible() -> bool:
    """Return whether an alarm can ring here: on the main thread, where the platform has one and Python owns it."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is not None
    )
