"""The workers of one DataLoader iterator: what each was given and has delivered, which are stuck, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fluxguard.guard import kin, pulse, rehearsal
from fluxguard.guard.rehearsal import CHECK, WARM_UP, Message, Past

_HELD = 0.5  # the longest that the interpreter is held for killed workers to be gone
_SHOWING = 0.1  # for a worker to write its stacks
_DATASET = 2  # torch's first arguments of a worker: the kind of the dataset, and the dataset
_REAP_POLL = 1000  # microseconds
_holding = threading.Lock()
_DATA = frozenset((".npz", ".npy", ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".jxl", ".avif", ".txt", ".caption"))


@dataclass(frozen=True)
class Delivery:
    """What a worker sends: torch's pair, who sends it, and its random states afterwards."""

    number: int
    pair: tuple[Any, Any]
    states: Any


@dataclass
class Member:
    """One worker, and what is known of it."""

    process: BaseProcess
    recipe: tuple[Any, tuple[Any, ...]]
    """What it runs, and with what arguments: enough to start another in its place."""
    given: dict[Any, Any] = field(default_factory=dict)
    """Samples by the number of their batch, in order: what it was given and has not delivered."""
    resume: Any = None
    """torch's message that an epoch begins, until it is answered."""
    past: Past = field(default_factory=Past)
    started: bool = False
    """Whether it has sent anything: until then it may still import what it needs."""
    rehearses: set[str] = field(default_factory=set)
    """What it has still to do again before it goes on."""

    @property
    def owes(self) -> bool:
        """Whether somebody may wait for it."""
        return bool(self.given or self.resume is not None or self.rehearses)

    def work(self) -> list[Message]:
        """Return what a fresh worker in its place must be given: what brings it along, and what this one owes."""
        return [
            *self.past.messages(),
            *([] if self.resume is None else [self.resume]),
            *self.given.items(),
        ]


class Crew:
    """One iterator's workers, as the trainer's process sees them."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.generation = 0
        """How often all of them were replaced."""
        self.doubts: list[str] = []
        """Why the workers that took over may not go on as those before them would have."""
        self.failure: Any = None
        """What a fresh worker met while it did again what the one before it had done well, as torch wraps it."""
        self._lock = threading.Lock()

    def join(self, process: BaseProcess, recipe: tuple[Any, tuple[Any, ...]]) -> int:
        """Take a worker into the crew and return its number."""
        self.members.append(Member(process, recipe))
        return len(self.members) - 1

    def given(self, number: int, task: Any) -> None:
        """Note that a worker was given a task: torch's (number of the batch, samples), or that an epoch begins."""
        member = self.members[number]
        if isinstance(task, tuple) and len(task) == 2:
            member.given[task[0]] = task[1]
        elif type(task).__name__ == "_ResumeIteration":
            member.resume = task
            member.past.begins_epoch()

    def delivered(self, delivery: Any, generation: int) -> tuple[Any, Any] | None:
        """Take note of what came from a worker and return torch's pair; None when it is not for torch."""
        if not isinstance(delivery, Delivery):
            return delivery  # type: ignore[no-any-return]
        key, batch = delivery.pair
        with self._lock:
            if generation != self.generation:
                return None  # from a worker whose work others do again
            member = self.members[delivery.number]
            member.started = True
            if isinstance(key, str) and key in member.rehearses:
                member.rehearses.discard(key)
                if type(batch).__name__ == "ExceptionWrapper":  # torch gives the first answer to what failed at start
                    self.failure = batch
                elif key == CHECK and (why := member.past.differs(batch, delivery.states)):
                    self.doubts.append(why)
                return None
            if type(key).__name__ == "_ResumeIteration":
                member.resume = None
            elif type(batch).__name__ == "_IterableDatasetStopIteration":
                member.given.clear()  # torch drops what this worker was given beyond its end
            elif key in member.given:
                member.past.delivers(member.given.pop(key), batch, delivery.states)
        return delivery.pair

    def replaced(self) -> None:
        """Note that all work is given to fresh workers: what still comes from the old ones is nobody's."""
        with self._lock:
            self.generation += 1
            self.doubts = [doubt for member in self.members if (doubt := member.past.doubt())]
            if any(rehearsal.draws_its_own(member.recipe[1][:_DATASET]) for member in self.members[:1]):
                self.doubts.append("the dataset draws random numbers from a generator of its own")
            for member in self.members:
                member.started = False
                member.rehearses = {
                    message[0]
                    for message in member.past.messages()
                    if isinstance(message, tuple) and message[0] in (WARM_UP, CHECK)
                }

    def rehearsing(self) -> bool:
        """Return whether fresh workers have not yet done again what brings them along."""
        return any(member.rehearses for member in self.members)

    def starting(self) -> bool:
        """Return whether a worker that owes something has never sent anything."""
        return any(member.owes and not member.started for member in self.members)

    def stuck(self) -> list[int]:
        """Return the numbers of the workers that owe work: the stopped ones among them, if any, else all."""
        holding = self.holding()
        return [number for number in holding if stopped(self.members[number].process.pid)] or holding

    def holding(self) -> list[int]:
        """Return the numbers of the workers that owe work; all, when nobody can tell."""
        return [number for number, member in enumerate(self.members) if member.owes] or list(range(len(self.members)))

    def dead(self) -> list[int]:
        """Return the numbers of the workers that ended although they owe work."""
        return [n for n, member in enumerate(self.members) if member.owes and member.process.exitcode is not None]

    def pids(self, numbers: list[int]) -> tuple[int, ...]:
        """Return their process ids."""
        return tuple(pid for number in numbers if (pid := self.members[number].process.pid))

    def samples(self, numbers: list[int]) -> tuple[object, ...]:
        """Return what they were loading."""
        return tuple(samples for number in numbers for samples in self.members[number].given.values())

    def reap(self) -> None:
        """Take note of workers that have ended; torch's handler of SIGCHLD raises for one that nobody has reaped."""
        for member in self.members:
            popen = getattr(member.process, "_popen", None)
            if popen is not None:
                popen.poll()

    def show_stacks(self, numbers: list[int]) -> None:
        """Let workers write their stacks where those of the trainer go, before they are killed.

        Forked ones can, by the signal that their parent registered; to the others it is a first kill. A stopped one
        would only show its stacks when it goes on, and where it is stuck is no question.
        """
        number = getattr(signal, "SIGUSR1", None)
        pids = [pid for pid in self.pids(numbers) if not stopped(pid)]
        if number is None or pulse.heart() is None or not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(_SHOWING)

    def kill(self) -> None:
        """Kill every worker and all below it: that frees whoever reads from one, and leaves nothing behind."""
        kill_descendants = kin.kill_below(self.pids(list(range(len(self.members)))))
        with _held():
            _kill([member.process for member in self.members if member.process.pid])  # one may not have started
        kill_descendants()


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Run a block of a few milliseconds before any other thread runs."""
    with _holding:  # or two of them would take the interval of the other for the one to go back to
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
        if worker._popen.returncode is not None:  # type: ignore[attr-defined]
            continue
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


def file_of(workers: tuple[int, ...]) -> str | None:
    """Return the file that stuck workers read, when they have exactly one open for reading that is no code.

    It is what the kernel says; which images a sample number stands for is shuffled anew in each worker.
    """
    files = {path for worker in workers for path in _open_files(worker) if path.suffix.lower() in _DATA}
    return str(files.pop()) if len(files) == 1 else None


def _open_files(worker: int) -> list[Path]:
    try:
        links = list(Path(f"/proc/{worker}/fd").iterdir())
        return [Path(os.readlink(link)) for link in links if not link.lstat().st_mode & stat.S_IWUSR]
    except OSError:
        return []
