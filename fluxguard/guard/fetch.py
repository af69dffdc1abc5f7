"""The trainer's wait for a batch: watched while it lasts, and ended by fresh workers when the old ones are stuck.

It stands in for one method of torch's iterator, `_try_get_data`, in which every wait of the trainer for its workers
lies, pinned or not. Nothing else tells when the trainer waits: a thread that pins batches always does.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NoReturn

from fluxguard import limits
from fluxguard.errors import WorkerDied, WorkerStuck
from fluxguard.guard import healed, pulse
from fluxguard.guard.batch_wait import WHAT, BatchWait
from fluxguard.guard.crew import Crew, file_of, stopped
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.healed import Heal
from fluxguard.guard.watcher import Wait, watcher

CAUSE = "loader worker"
_PINS = "the thread that pins batches in memory"
_POLL = 0.5  # between two looks at workers whose end nothing announces
_ANSWER = 1.0  # for the thread that waits, once the workers are killed: it is out of every read then
_DYING, _DYING_POLL = 0.5, 0.01
_MOST_FRAMES = 8


@dataclass(frozen=True)
class Lost:
    """Why the workers were given up."""

    why: str
    """What was wrong, in words, beginning with the worker."""
    stuck: bool
    """Whether they were stuck, and not dead."""
    since: float
    """When the wait for them began, monotonic seconds."""
    limit: float
    pids: tuple[int, ...]
    samples: tuple[object, ...]
    file: str | None

    def error(self, why: str = "") -> WorkerStuck | WorkerDied:
        """Return what to raise where no process may be ended; `why` says what kept the workers from being replaced."""
        if self.stuck:
            return WorkerStuck(self.limit, self.pids, self.samples, why)
        return WorkerDied("; ".join(filter(None, (self.why, why))), self.pids)

    def verdict(self, why: str = "") -> Verdict:
        """Return why the trainer is ended; `why` says what kept the workers from being replaced."""
        said = f"{WHAT} did not " + (f"finish within {self.limit:g} s" if self.stuck else "come")
        held = f"it held the samples {', '.join(map(str, self.samples))}" if self.samples else ""
        return Verdict(
            what="; ".join(filter(None, (said, self.why, held, why))),
            cause=CAUSE,
            limit=self.limit,
            waited=time.monotonic() - self.since,
            file=self.file,
            workers=self.pids,
            samples=self.samples,
            said=True,
        )


class _Process:
    """What all iterators of this process share."""

    def __init__(self) -> None:
        self.heals = 0
        self.crews: weakref.WeakSet[Crew] = weakref.WeakSet()
        self.listens = False
        self.before: Any = None


_process = _Process()


class Fetch:
    """One iterator's wait for its workers."""

    def __init__(self, iterator: Any, results: Any) -> None:
        self.crew = Crew()
        self.lost: Lost | None = None
        """Set by the watcher when it has killed the workers, until they are replaced."""
        self.reading = False
        """Whether somebody is in the results' read: the thread that pins, or the one that waits."""
        self._iterator = weakref.ref(iterator)
        self._results = results
        self._giving_up = threading.Lock()
        self._held: deque[Any] = deque()
        self._mending: Lost | None = None
        self._doubts: list[str] = []
        self._healed = self._given = False
        # By a weak reference: in a cycle the queues and last batches of each epoch would wait for the collector.
        self._wait = BatchWait(self.crew, functools.partial(_due, weakref.ref(self)))
        self._pins: Wait | None = None
        iterator._try_get_data = functools.partial(_try_get_data, weakref.ref(self))
        iterator._fluxguard_fetch = self  # it lives as long as the iterator, and not the other way round

    # What the queues tell.

    def gives(self, number: int, task: object) -> None:
        """Note that a worker is given a task."""
        if not self._given:
            self._given = True
            reaps(self.crew)
        self.crew.given(number, task)

    @contextlib.contextmanager
    def reads(self) -> Iterator[None]:
        """Note that somebody reads what the workers send."""
        self.reading = True
        try:
            yield
        finally:
            self.reading = False

    def broken(self, generation: int) -> bool:
        """Return whether what a read of that generation met is the end of its workers.

        The sockets of a process are closed before its end can be seen.
        """
        until = time.monotonic() + _DYING
        while self.lost is None and generation == self.crew.generation and not self.crew.dead():
            if time.monotonic() > until:
                return False
            time.sleep(_DYING_POLL)
        return True

    def ends(self) -> None:
        """Note that torch ends the iterator: it waits for the pinning thread, without any limit of its own."""
        self._wait.ends()
        limit = limits.current().wait.batch
        if limit is not None and pulse.begun():
            self._pins = Wait(_PINS, limit, time.monotonic(), _pins_no_more, True)
            watcher().open(self._pins)

    def ended(self) -> None:
        """Note that the pinning thread has ended."""
        if self._pins is not None:
            watcher().close(self._pins)

    # The thread that waits.

    def get(self, timeout: float) -> tuple[bool, Any]:
        """Return as torch's `_try_get_data` does: (True, what came) or, when `timeout` is its caller's, (False, None).

        Raises WorkerStuck, where nothing may be ended, when the workers are stuck or dead and cannot be replaced.
        """
        iterator: Any = self._iterator()
        if not self._mending and self._held:
            return True, self._held.popleft()
        until = time.monotonic() + timeout if iterator._timeout > 0 else math.inf
        with self._watched():
            while True:
                answer = self._poll(iterator, min(_POLL, until - time.monotonic()))
                if answer is not None:
                    self._held.append(answer)
                elif self.lost is not None or self.crew.dead():
                    self._mend(iterator)
                if self.crew.failure is not None:
                    self.crew.failure.reraise()
                if self._mending and not self.crew.rehearsing():
                    self._mended()
                if self._held and not self._mending:
                    if not self._healed:
                        self._wait.completed()
                    return True, self._held.popleft()
                if time.monotonic() >= until:
                    return False, None
                if _pins(iterator) and not iterator._pin_memory_thread.is_alive():
                    raise RuntimeError("Pin memory thread exited unexpectedly")

    def _poll(self, iterator: Any, seconds: float) -> Any:
        """Wait for what came, or for the end of a worker; None when nothing came."""
        seconds = max(0.0, seconds)
        with contextlib.suppress(queue.Empty):
            if _pins(iterator):
                return iterator._data_queue.get(timeout=seconds)
            reader = self._results.line._reader
            ends = [member.process.sentinel for member in self.crew.members if member.owes]
            if reader in connection.wait([reader, *ends], seconds):
                return self._results.get()
        return None

    def _mend(self, iterator: Any) -> None:
        """Put fresh workers in the place of stuck or dead ones; where that cannot be, end a trainer or raise."""
        with self._giving_up:  # the watcher may be in the middle of it
            lost = self.lost or self._dead()
        if why := _why_not(iterator):
            self._end(lost, why)
        _process.heals += 1
        self.crew.kill()
        self._healed, self.lost = True, None
        # Fresh workers that were compared and found different may have worked before they were lost: not told yet.
        self._doubts = [*self._doubts, *self.crew.doubts] if self._mending else []
        self._mending = self._mending or lost
        self._wait.begins()
        try:
            self._results.replace(iterator, self.crew)
        except (OSError, RuntimeError) as error:  # no memory, no process or no thread is left for them
            self._end(lost, f"no other can be started ({getattr(error, 'strerror', None) or error})")

    def _mended(self) -> None:
        """Tell that the fresh workers have caught up; where the training would not stay the same, maybe end instead."""
        lost, self._mending = self._mending, None
        assert lost is not None
        doubt = "; ".join(dict.fromkeys([*self._doubts, *self.crew.doubts]))
        if doubt and limits.current().strict:
            self._end(lost, f"the training would not go on identically: {doubt}")
        healed.tell(
            Heal(
                what=WHAT,
                cause=CAUSE,
                why=f"{lost.why} and was replaced",
                seconds=time.monotonic() - lost.since,
                identical=not doubt,
                doubt=doubt,
                file=lost.file,
                workers=lost.pids,
            )
        )

    def _dead(self) -> Lost:
        numbers = self.crew.dead()
        return Lost(
            why="; ".join(_how_it_ended(self.crew.members[number].process) for number in numbers),
            stuck=False,
            since=self._wait.since,
            limit=self._wait.limit or math.inf,
            pids=self.crew.pids(numbers),
            samples=self.crew.samples(numbers),
            file=None,
        )

    def _end(self, lost: Lost, why: str = "") -> NoReturn:
        self.crew.kill()
        self._wait.ends()
        self.lost = lost
        if pulse.begun():
            end_process(lost.verdict(why))
        raise lost.error(why)

    # The watcher.

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._healed = False
        self._wait.begins()
        try:
            yield
        finally:
            self._wait.ends()

    def _due(self, wait: Wait) -> float | None:
        iterator = self._iterator()
        if not self._wait.is_open(wait) or iterator is None:
            return None
        if self.lost is not None:  # the workers are gone, and whoever waits for them does not wake up
            end_process(self.lost.verdict())
        numbers = self.crew.stuck()
        pids = self.crew.pids(numbers)
        lost = Lost(
            why=f"worker process {', '.join(map(str, pids)) or 'unknown'} was {self._how(pids)} for {wait.limit:g} s",
            stuck=True,
            since=self._wait.since,
            limit=wait.limit,
            pids=pids,
            samples=self.crew.samples(numbers),
            file=file_of(pids),
        )
        if wait.fatal and _pins(iterator) and not self.reading:
            _pins_no_more(wait)
        with self._giving_up:
            if not self._wait.is_open(wait):
                return None  # it came at the last moment
            self.lost = lost
            self.crew.show_stacks(numbers)
            if wait.fatal and (why := _why_not(iterator)):
                end_process(lost.verdict(why))
            self.crew.kill()
            # A worker killed in the middle of a message leaves a reader that waits for its rest while anyone can write.
            with contextlib.suppress(OSError):
                self._results.line._writer.close()
        return _ANSWER if wait.fatal else None

    @staticmethod
    def _how(pids: tuple[int, ...]) -> str:
        return "stopped (SIGSTOP), and so stuck," if any(stopped(pid) for pid in pids) else "stuck"


def _why_not(iterator: Any) -> str:
    """Return why fresh workers may not take over; nothing when they may."""
    from torch.utils.data import _DatasetKind

    if iterator._dataset_kind != _DatasetKind.Map:
        return "its dataset is a stream, which cannot be begun again in its middle"
    most = limits.current().max_heals
    if _process.heals < most:
        return ""
    if not most:
        return "workers are not replaced (max_heals is 0)"
    return f"workers were replaced {most} times before, which is the most (max_heals)"


def _pins_no_more(wait: Wait) -> NoReturn:
    end_process(Verdict(what=_PINS, cause=CAUSE, limit=wait.limit, waited=time.monotonic() - wait.since))


def _due(fetch: weakref.ref[Fetch], wait: Wait) -> float | None:
    known = fetch()
    return None if known is None else known._due(wait)


def _try_get_data(fetch: weakref.ref[Fetch], timeout: float = 5.0) -> tuple[bool, Any]:
    known = fetch()
    assert known is not None  # it lives as long as the iterator whose method this is
    return known.get(timeout)


def iterator_here() -> Any:
    """Return torch's iterator that is starting workers in this thread, or None.

    Only the frames know: accelerate rebuilds every loader, and no other way of torch's leads from a worker to it.
    """
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if isinstance(found := frame.f_locals.get("self"), _MultiProcessingDataLoaderIter):
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def reaps(crew: Crew) -> None:
    """Let dead workers of `crew` be noticed when the trainer waits for them, not wherever it happens to be.

    torch's handler of SIGCHLD raises on the main thread, in the middle of a step or of a save.
    """
    _process.crews.add(crew)
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    if not _process.listens:  # once: whoever takes the signal over later calls us, as we call torch
        _process.listens = True
        _process.before = signal.signal(signal.SIGCHLD, _on_child)


def _on_child(number: int, frame: Any) -> None:
    for crew in list(_process.crews):
        crew.reap()
    if callable(_process.before):
        _process.before(number, frame)


def _pins(iterator: Any) -> bool:
    return bool(iterator._pin_memory)


def _how_it_ended(process: Any) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            why = " (as the system does when memory runs out: fewer workers need less)" if name == "SIGKILL" else ""
            return f"worker process {process.pid} was killed by {name}{why}"
    return f"worker process {process.pid} exited with code {code}"
