"""The watcher: one thread that knows every open wait of this process and what to do when one is over its limit."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable

from fluxguard.clock import Clock, SystemClock
from fluxguard.guard import asked, ending, pulse

logger = logging.getLogger(__name__)

_TICK = 1.0
LATE = 5.0
"""A tick this late means that the machine slept, the process was stopped, or the interpreter was held: nobody
waited in that time, so no deadline may have passed in it."""
_BACKUP = 1.0  # how long after a passed deadline the interpreter counts as held


class Wait:
    """One open wait."""

    __slots__ = ("at", "backed", "fatal", "limit", "on_due", "since", "what")

    def __init__(self, what: str, limit: float, since: float, on_due: Callable[[Wait], float | None], fatal: bool):
        self.what = what
        self.limit = limit
        self.since = since
        """When it began, monotonic seconds; moved on by gaps in which nobody ran, so that they count for nothing."""
        self.at = since + limit
        self.on_due = on_due
        """Called by the watcher when `at` has passed; returns seconds to wait longer, or None when that was all."""
        self.fatal = fatal
        """Whether it ends the process; such a wait shows in the heartbeat and is backed by faulthandler."""
        self.backed = False


class OpenWaits:
    """The open waits, their deadlines, and the time in which nobody ran; knows no thread and no clock."""

    def __init__(self, now: float, lost: float = 0.0) -> None:
        # A dictionary whose single operations are atomic: a lock here could be held by an interrupted thread.
        self._open: dict[Wait, None] = {}
        # Both in one value, which changes at once: whoever reads only one of them anew loses a gap, or counts it twice.
        self._planned_and_lost = now, lost

    def add(self, wait: Wait) -> None:
        """Open `wait`."""
        self._open[wait] = None

    def remove(self, wait: Wait) -> None:
        """Close `wait`; closing it twice is one close."""
        self._open.pop(wait, None)

    def fatal(self) -> list[Wait]:
        """Return the open waits that end the process, the earliest deadline first."""
        return sorted((wait for wait in list(self._open) if wait.fatal), key=lambda wait: wait.at)

    def lost(self, now: float) -> float:
        """Return the seconds until `now` in which nobody ran, a tick that is overdue included; they only grow."""
        planned, lost = self._planned_and_lost
        late = now - planned
        return lost + late if late > LATE else lost

    def tick(self, now: float) -> list[Wait]:
        """Return the waits whose deadline has passed, after giving back the time in which nobody ran."""
        late = now - self._planned_and_lost[0]
        waits = list(self._open)
        if late > LATE:
            for wait in waits:
                gap = min(late, now - wait.since)
                wait.at += gap
                wait.since += gap
        self._planned_and_lost = math.inf, self.lost(now)  # no tick is planned before the next pause, so none is late
        return [wait for wait in waits if wait.at <= now]

    def pause(self, now: float) -> float:
        """Return how long the watcher may sleep: until the next tick or the earliest deadline."""
        earliest = min((wait.at for wait in list(self._open)), default=math.inf)
        seconds = max(0.0, min(_TICK, earliest - now))
        self._planned_and_lost = now + seconds, self._planned_and_lost[1]
        return seconds

    def forgo(self) -> None:
        """Note that no tick is planned at all."""
        self._planned_and_lost = math.inf, self._planned_and_lost[1]


class Watcher:
    """The thread that ticks, started with the first wait."""

    def __init__(self, clock: Clock, lost: float = 0.0) -> None:
        self._clock = clock
        self._waits = OpenWaits(clock.monotonic(), lost)
        # Both may be asked for by a signal's handler in the middle of a block in which its own thread holds them.
        self._wake = threading.Condition(threading.RLock())
        self._settling = threading.RLock()
        self._next = -math.inf
        self._thread: threading.Thread | None = None
        self._told = False

    def lost(self, now: float) -> float:
        """Return the seconds until `now` in which this process could not run."""
        if self._thread is None:
            self._start()
        return self._waits.lost(now)

    def open(self, wait: Wait, *, backed: bool = False) -> None:
        """Watch `wait` until it is closed.

        `backed` arms the faulthandler timer at once; otherwise the next tick does, which is cheaper for the many
        waits that are over before it.
        """
        self._waits.add(wait)
        if self._thread is None:
            self._start()
            backed = backed or self._thread is None
        if wait.at < self._next:
            with self._wake:
                self._wake.notify()
        if wait.fatal:
            if backed:
                wait.backed = True
                self._settle()
            self._show()

    def close(self, wait: Wait) -> None:
        """Watch `wait` no longer."""
        self._waits.remove(wait)
        if wait.fatal:
            if wait.backed:
                self._settle()
            self._show()

    def _start(self) -> None:
        with self._wake:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="fluxguard-watcher", daemon=True)
            self._waits.pause(self._clock.monotonic())
            try:
                thread.start()
            except RuntimeError as error:  # at the very end of the interpreter, or where the system allows no more
                self._waits.forgo()
                if not self._told:
                    self._told = True
                    logger.warning("limits may not hold, the thread that watches them cannot be started: %s", error)
            else:
                self._thread = thread

    def _run(self) -> None:
        try:
            while True:
                self._tick()
        finally:  # a fault of ours, which is shown; the next wait gets another thread
            self._waits.forgo()
            self._thread = None

    def _tick(self) -> None:
        asked.look()
        now = self._clock.monotonic()
        for wait in self._waits.tick(now):
            try:
                more = wait.on_due(wait)
            except BaseException:
                self._waits.remove(wait)  # or it would end the next thread as well
                raise
            if more is None:
                self.close(wait)
            else:
                wait.at = now + more
        self._back()
        self._follow()
        with self._wake:
            # Whoever opens a wait from here until we sleep must notify, because we may not have seen it.
            self._next = math.inf
            now = self._clock.monotonic()
            pause = self._waits.pause(now)
            self._next = now + pause
            self._wake.wait(pause)

    def _back(self) -> None:
        fatal = self._waits.fatal()
        if fatal:
            for wait in fatal:
                wait.backed = True
            self._settle()

    def _settle(self) -> None:
        """Make the faulthandler timer agree with the open waits."""
        with self._settling:
            earliest = next((wait for wait in self._waits.fatal() if wait.backed), None)
            if earliest is None:
                ending.disarm()
            else:
                ending.arm(earliest.at + _BACKUP)

    def _follow(self) -> None:
        """Show a deadline that has moved: the supervisor ends a trainer that is past the one it sees."""
        heart = pulse.heart()
        earliest = next(iter(self._waits.fatal()), None)
        if heart is not None and earliest is not None and heart.deadline != earliest.at:
            self._show()

    def _show(self) -> None:
        """Show the wait with the earliest deadline in the heartbeat."""
        heart = pulse.heart()
        if heart is None:
            return
        earliest = next(iter(self._waits.fatal()), None)
        heart.wait = b"" if earliest is None else earliest.what.encode()
        heart.deadline = math.inf if earliest is None else earliest.at
        heart.beat()


class _Process:
    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.hooked = False
        self.lost = 0.0


_process = _Process()


def watcher() -> Watcher:
    """Return the watcher of this process."""
    if _process.watcher is None:
        if not _process.hooked and hasattr(os, "register_at_fork"):
            _process.hooked = True
            os.register_at_fork(after_in_child=_forget)
        _process.watcher = Watcher(SystemClock(), _process.lost)
    return _process.watcher


def awake() -> float:
    """Return a time in seconds that stands still while this process cannot run: suspended, stopped, or held.

    Like `time.monotonic()` it only says how much later than another of its values it is. What it leaves out are gaps
    of more than LATE between two ticks of the watcher, the one that ends just now included. From the first call on
    the watcher ticks.
    """
    now = time.monotonic()
    return now - (_process.watcher or watcher()).lost(now)


def lost() -> float:
    """Return the seconds that `awake` has left out so far: a wait that ends with more than it began with slept."""
    return (_process.watcher or watcher()).lost(time.monotonic())


def _forget() -> None:
    """In a forked child: its watcher's thread does not exist, and its waits are the parent's."""
    if _process.watcher is not None:
        # So that the awake time of the child goes on where that of its parent was.
        _process.lost = _process.watcher._waits.lost(time.monotonic())
        _process.watcher = None
