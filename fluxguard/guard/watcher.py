"""The watcher: one thread that knows every open wait of this process and what to do when one is over its limit."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

from fluxguard.clock import Clock, SystemClock
from fluxguard.guard import ending, pulse

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
        self.at = since + limit
        self.on_due = on_due
        """Called by the watcher when `at` has passed; returns seconds to wait longer, or None when that was all."""
        self.fatal = fatal
        """Whether it ends the process; such a wait shows in the heartbeat and is backed by faulthandler."""
        self.backed = False


class OpenWaits:
    """The open waits and their deadlines; knows no thread and no clock."""

    def __init__(self, now: float) -> None:
        # A dictionary whose single operations are atomic: a lock here could be held by an interrupted thread.
        self._open: dict[Wait, None] = {}
        self._planned = now

    def add(self, wait: Wait) -> None:
        """Open `wait`."""
        self._open[wait] = None

    def remove(self, wait: Wait) -> None:
        """Close `wait`; closing it twice is one close."""
        self._open.pop(wait, None)

    def fatal(self) -> list[Wait]:
        """Return the open waits that end the process, the earliest deadline first."""
        return sorted((wait for wait in list(self._open) if wait.fatal), key=lambda wait: wait.at)

    def tick(self, now: float) -> list[Wait]:
        """Return the waits whose deadline has passed, after giving back the time in which nobody ran."""
        late = now - self._planned
        self._planned = max(self._planned, now)
        waits = list(self._open)
        if late > LATE:
            for wait in waits:
                wait.at += min(late, now - wait.since)
        return [wait for wait in waits if wait.at <= now]

    def pause(self, now: float) -> float:
        """Return how long the watcher may sleep: until the next tick or the earliest deadline."""
        earliest = min((wait.at for wait in list(self._open)), default=math.inf)
        seconds = max(0.0, min(_TICK, earliest - now))
        self._planned = now + seconds
        return seconds


class Watcher:
    """The thread that ticks, started with the first wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits = OpenWaits(clock.monotonic())
        self._wake = threading.Condition(threading.Lock())
        self._settling = threading.Lock()
        self._next = -math.inf
        self._thread: threading.Thread | None = None

    def open(self, wait: Wait, *, backed: bool = False) -> None:
        """Watch `wait` until it is closed.

        `backed` arms the faulthandler timer at once; otherwise the next tick does, which is cheaper for the many
        waits that are over before it.
        """
        self._waits.add(wait)
        if self._thread is None:
            self._start()
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
            if self._thread is None:
                self._waits.pause(self._clock.monotonic())
                self._thread = threading.Thread(target=self._run, name="fluxguard-watcher", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            now = self._clock.monotonic()
            for wait in self._waits.tick(now):
                more = wait.on_due(wait)
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


_process = _Process()


def watcher() -> Watcher:
    """Return the watcher of this process."""
    if _process.watcher is None:
        if not _process.hooked and hasattr(os, "register_at_fork"):
            _process.hooked = True
            os.register_at_fork(after_in_child=_forget)
        _process.watcher = Watcher(SystemClock())
    return _process.watcher


def _forget() -> None:
    """In a forked child: its watcher's thread does not exist, and its waits are the parent's."""
    _process.watcher = None
