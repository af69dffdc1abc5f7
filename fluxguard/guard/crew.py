"""The workers of one DataLoader iterator: what each was given, how long the trainer has waited, and their end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from fluxguard.errors import WorkerStuck
from fluxguard.guard import pulse
from fluxguard.guard.deadlines import limits
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.progress import ProcessMoved
from fluxguard.guard.watcher import Wait, watcher

_WHAT = "a batch from the loader"
_PINS = "the thread that pins batches in memory"
_ASKS = 5.0  # torch's main thread asks after its workers every 5 s while it waits for the pinning thread
_ASKED = 7.0  # later than that after it asked, it waits no more
_HELD = 0.5  # the longest that the interpreter is held for killed workers to be gone
_REAP_POLL = 1000  # microseconds
_DATA = frozenset((".npz", ".npy", ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".jxl", ".avif", ".txt", ".caption"))
_LOOK, _LOOKS = 1.0, 10  # seconds between two looks at what the workers read; so many within a limit, at least
_LINGER = 1.0  # between two polls torch comes back at once; later than that nobody waits any more


class _Pipe(Protocol):
    def close(self) -> None: ...


class Crew:
    """One iterator's workers, as the trainer's process sees them."""

    def __init__(self, writer: _Pipe) -> None:
        self.workers: list[BaseProcess] = []
        self.lost: WorkerStuck | None = None
        """Set once, when the workers were killed because one was stuck."""
        self._told = False
        self._writer = writer
        self._owner = self._reader = threading.get_ident()
        self._given: list[dict[object, object]] = []
        self._wait: Wait | None = None
        self._look: Wait | None = None
        self._reads: dict[int, ProcessMoved] = {}
        self._inside = False
        self._left = -math.inf
        self._asked = -math.inf
        self._delivered = False
        self._ending = False

    def join(self, worker: BaseProcess) -> int:
        """Take a worker into the crew and return its number."""
        self.workers.append(worker)
        self._given.append({})
        return len(self.workers) - 1

    def given(self, number: int, task: object) -> None:
        """Note that a worker was given a task: torch's (index, samples), anything else is its own business."""
        if isinstance(task, tuple) and len(task) == 2:
            self._given[number][task[0]] = task[1]

    def opens(self) -> None:
        """Note that somebody waits for a batch; the limit counts from the first wait after the last batch.

        A pinning thread waits whether or not the trainer needs a batch: there `asked` opens the wait.
        """
        now = time.monotonic()
        self._inside = True
        self._reader = threading.get_ident()
        if self._reader != self._owner:
            return
        if self._wait is not None and now - self._left > _LINGER:
            self.closes()
            self._inside = True
        if self._wait is None:
            self._open(now)

    def _open(self, since: float) -> None:
        limit = limits().batch if self._delivered else limits().first_batch
        if limit is not None:
            self._wait = Wait(_WHAT, limit, since, self._due, pulse.begun())
            self._look = Wait(_WHAT, min(_LOOK, limit / _LOOKS), since, self._looks, False)
            self._reads = {}
            watcher().open(self._look)
            watcher().open(self._wait)

    def ends(self) -> None:
        """Note that torch ends the iterator: it waits for the pinning thread, without any limit of its own."""
        self._ending = True
        self.closes()
        limit = limits().batch
        if limit is not None and pulse.begun() and self._reader != self._owner:
            self._wait = Wait(_PINS, limit, time.monotonic(), self._end, True)
            watcher().open(self._wait)

    def pauses(self) -> None:
        """Note that a poll ended without a batch."""
        self._inside = False
        self._left = time.monotonic()

    def closes(self) -> None:
        """Note that nobody waits any more."""
        self._inside = False
        if self._wait is not None:
            watcher().close(self._wait)
            self._wait = None
        if self._look is not None:
            watcher().close(self._look)
            self._look = None

    def arrived(self, result: object) -> None:
        """Note that a batch (or another answer of a worker) arrived."""
        self.closes()
        self._delivered = True
        if not (isinstance(result, tuple) and len(result) == 2):
            return
        key, data = result
        for tasks in self._given:
            if _forgets(tasks, key):
                break
        ended = getattr(data, "worker_id", None)
        if isinstance(ended, int) and type(data).__name__ == "_IterableDatasetStopIteration":
            self._given[ended].clear()  # torch drops what this worker was given beyond its end

    def asked(self) -> None:
        """Note that the trainer asks whether its workers live. Raises WorkerStuck, once, when they were killed.

        torch asks in every error and at every empty poll: the one place that sees them all.
        """
        now = time.monotonic()
        pinned = self._reader != self._owner and threading.get_ident() == self._owner
        if pinned and self._wait is None and self.lost is None and not self._ending:
            self._open(now - _ASKS)
        self._asked = now
        if self.lost is not None and not self._told:
            self._told = True
            raise self.lost

    def forgive(self) -> None:
        """Raise WorkerStuck when the workers were killed; the pinning thread meets an empty poll instead."""
        if self.lost is not None and threading.get_ident() == self._owner:
            raise self.lost

    def stuck(self) -> list[int]:
        """Return the numbers of the workers that hold work: the stopped ones among them, if any, else all."""
        holding = self._holding()
        return [number for number in holding if stopped(self.workers[number].pid)] or holding

    def _holding(self) -> list[int]:
        return [number for number, tasks in enumerate(self._given) if tasks] or list(range(len(self.workers)))

    def _looks(self, look: Wait) -> float | None:
        """Let the limit begin anew when a worker that holds work has read something: a slow disk is not a stuck one."""
        wait = self._wait
        if look is not self._look or wait is None:
            return None
        pids = [pid for number in self._holding() if (pid := self.workers[number].pid)]
        known = self._reads
        self._reads = {pid: known.get(pid) or ProcessMoved(pid) for pid in pids}
        if True in [self._reads[pid].moved() for pid in pids if pid in known]:
            wait.at = time.monotonic() + wait.limit
        return look.limit

    def _due(self, wait: Wait) -> float | None:
        if wait is not self._wait or not self._awaited(time.monotonic()):
            self._wait = None
            return None
        if self._reader != self._owner and not self._inside:
            return self._end(wait, _PINS)
        stuck = self.stuck()
        pids = tuple(pid for number in stuck if (pid := self.workers[number].pid))
        samples = tuple(held for number in stuck for held in self._given[number].values())
        return self._end(wait, _WHAT, pids, samples)

    def _awaited(self, now: float) -> bool:
        if self._reader != self._owner:
            return now - self._asked < _ASKED
        return self._inside or now - self._left < _LINGER

    def _end(
        self, wait: Wait, what: str = _PINS, pids: tuple[int, ...] = (), samples: tuple[object, ...] = ()
    ) -> float | None:
        if wait.fatal:
            waited = time.monotonic() - wait.since
            end_process(
                Verdict(
                    what=what,
                    cause="loader worker",
                    limit=wait.limit,
                    waited=waited,
                    file=_file_of(pids),
                    workers=pids,
                    samples=samples,
                )
            )
        self._give_up(WorkerStuck(wait.limit, pids, samples))
        self._wait = None
        return None

    def _give_up(self, error: WorkerStuck) -> None:
        """Kill every worker: that frees whoever reads from one, and leaves nothing that an exit would wait for."""
        with _held():  # the main thread, too, kills a stopped worker as soon as it sees that the crew is lost
            self.lost = error
            _kill(self.workers)
        # A worker killed in the middle of a message leaves a reader that waits for its rest while anyone could write.
        with contextlib.suppress(OSError):
            self._writer.close()


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Run a block of a few milliseconds before any other thread runs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_HELD)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _kill(workers: list[BaseProcess]) -> None:
    """Kill workers and reap them.

    torch's SIGCHLD handler raises on the main thread, at whatever line that is, when it finds a killed worker; one
    that is reaped already it does not find. So the interpreter is held meanwhile.
    """
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.kill()
    if os.name == "posix":
        _reap(workers, time.monotonic() + _HELD)


def _reap(workers: list[BaseProcess], deadline: float) -> None:
    import ctypes

    libc = ctypes.PyDLL(None)  # unlike os.waitpid and ctypes.CDLL it does not let other threads run
    status = ctypes.c_int()
    for worker in workers:
        while not (reaped := libc.waitpid(worker.pid, ctypes.byref(status), os.WNOHANG)):
            if time.monotonic() > deadline:
                return
            libc.usleep(_REAP_POLL)
        if reaped == worker.pid:
            worker._popen.returncode = -int(signal.SIGKILL)  # type: ignore[attr-defined]


def stopped(pid: int | None) -> bool:
    """Return whether a process is stopped (SIGSTOP); False where the platform does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _file_of(workers: tuple[int, ...]) -> str | None:
    """Return the file that stuck workers read, when they have exactly one open that is no code of the trainer.

    It is what the kernel says; which images a sample number stands for is shuffled anew in each worker.
    """
    files = {path for worker in workers for path in _open_files(worker) if path.suffix.lower() in _DATA}
    return str(files.pop()) if len(files) == 1 else None


def _open_files(worker: int) -> list[Path]:
    try:
        return [Path(os.readlink(link)) for link in Path(f"/proc/{worker}/fd").iterdir()]
    except OSError:
        return []


def _forgets(tasks: dict[object, Any], key: object) -> bool:
    try:
        return tasks.pop(key, tasks) is not tasks
    except TypeError:  # not a key at all: an answer that belongs to no task
        return False
