"""Waits for work that other threads do: their limit counts from the last sign of that work, so slow is never stuck.

What a pool thread reads cannot be interrupted, and a network disk may need minutes for a folder of pictures. What
tells a slow one from a dead one is that bytes come in, or that a processor is busy with them.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable

from fluxguard import limits
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.progress import Silence, ThreadMoved, tick
from fluxguard.guard.watcher import Wait, awake, lost, watcher

_BUSY = 0.05  # of one processor: decoding takes all of one, a process in which everything waits takes none

Finished = Callable[[float], bool]
"""Waits so many seconds at the most and returns whether the work is done."""


class OtherThreads:
    """What the threads of this process other than the one that looks have done since its last look."""

    def __init__(self) -> None:
        self._reads: dict[int, ThreadMoved] = {}
        self._at = self._cpu = -math.inf

    def worked(self) -> bool:
        """Return whether any of them has moved a byte or kept a processor busy; False at the first look."""
        read, computed = self._read(), self._computed()  # both, because each takes note of what it sees
        return read or computed

    def _read(self) -> bool:
        known = self._reads
        self._reads = {thread: known.get(thread) or ThreadMoved(thread) for thread in _threads()}
        return True in {self._reads[thread].moved() for thread in self._reads.keys() & known.keys()}

    def _computed(self) -> bool:
        at, cpu = self._at, self._cpu
        self._at, self._cpu = time.monotonic(), time.process_time() - time.thread_time()
        return at > -math.inf and self._cpu - cpu > _BUSY * (self._at - at)


def _threads() -> list[int]:
    if not sys.platform.startswith("linux"):
        return []
    try:
        return [int(name) for name in os.listdir("/proc/self/task") if int(name) != threading.get_native_id()]
    except OSError:
        return []


class _Idle:
    """An open wait whose limit begins anew with each sign of work; ends a trainer when there was none for too long."""

    def __init__(self, limit: float, what: str, file: str | None) -> None:
        self._what = what
        self._file = file
        self._others = OtherThreads()
        self._silence = Silence(limit, awake())
        self._every = tick(limit)
        self._slept = lost()
        now = time.monotonic()
        self._wait = Wait(what, limit, now, self._end, pulse.begun())
        self._look = Wait(what, self._every, now, self._looks, False)

    def __enter__(self) -> _Idle:
        if self._wait.fatal:
            watcher().open(self._wait)
        watcher().open(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        watcher().close(self._look)
        if self._wait.fatal:
            watcher().close(self._wait)

    def left(self) -> float:
        """Return seconds until the waiting thread must give up: infinite in a trainer, which the watcher ends."""
        return math.inf if self._wait.fatal else self._silence.left(awake())

    def completed(self) -> None:
        """Note that the wait has passed: the longest time without a sign of work in it is no fault the next time."""
        now = awake()
        self._silence.heard(now)
        if now - self._silence.began > self._every and lost() == self._slept:
            pulse.completed("read", self._silence.longest)

    def _looks(self, _: Wait) -> float:
        if self._others.worked():
            self._silence.heard(awake())
            self._wait.at = time.monotonic() + self._silence.limit
        return self._every

    def _end(self, wait: Wait) -> None:
        end_process(
            Verdict(
                what=self._what,
                cause="file read",
                limit=self._silence.limit,
                waited=awake() - self._silence.began,
                file=self._file,
            )
        )


def wait_while_working(finished: Finished, what: str, file: str | None = None) -> None:
    """Wait until `finished`, for as long as the threads that work on it read or compute.

    Nothing of both for the limit of a file read ends a trainer, with `file` in its last words. Elsewhere it raises
    DeadlineExceeded, as an earlier `fail_after` does everywhere.
    """
    limit = deadlines.positive(limits.current().wait.read)
    if limit == math.inf:
        while not finished(deadlines.remaining()):
            deadlines.check()
        return
    with _Idle(limit, what, file) as idle:
        while not finished(min(idle.left(), deadlines.remaining())):
            deadlines.check()
            if idle.left() <= 0:
                about = f"{what} ({file})" if file else what
                raise DeadlineExceeded(about, limit, "nothing was read in that time", "read")
        idle.completed()
