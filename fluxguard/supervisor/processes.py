"""The one place that touches processes: identity, what they use, and how they end. psutil errors stop here."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fluxguard.clock import Clock
from fluxguard.rundir import ATTEMPT_VARIABLE

_log = logging.getLogger(__name__)

_SAME_START = 1.0  # create times of one process differ by rounding between two readings
_LADDER_LOOK = 0.05
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


@dataclass(frozen=True)
class Identity:
    """A process, beyond the reuse of its number."""

    pid: int
    started: float
    """Seconds since the epoch."""

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of the process that has this number now, or None."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return _live(self) is not None


@dataclass(frozen=True)
class Usage:
    """What the processes of an attempt used so far, and what they are doing."""

    cpu: float
    """Seconds of processor time."""
    io: int
    """Bytes read and written, caches included where the platform counts them."""
    states: tuple[tuple[int, str, str], ...]
    """(pid, name, status) of each process."""

    @property
    def stopped(self) -> tuple[int, ...]:
        """Processes that somebody stopped."""
        return tuple(pid for pid, _, status in self.states if status in (psutil.STATUS_STOPPED, "tracing-stop"))

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Processes in an uninterruptible kernel wait."""
        return tuple(pid for pid, _, status in self.states if status == psutil.STATUS_DISK_SLEEP)


def _live(identity: Identity) -> psutil.Process | None:
    try:
        process = psutil.Process(identity.pid)
        same = abs(process.create_time() - identity.started) < _SAME_START
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def of_attempt(attempt: str, keeper: Identity | None) -> list[Identity]:
    """Return every process of the attempt: descendants of its keeper, and whoever carries its uuid.

    The keeper itself is left out. The uuid finds processes that left the tree by setsid or lost their parents.
    """
    found: dict[int, Identity] = {}
    root = _live(keeper) if keeper else None
    if root is not None:
        with contextlib.suppress(psutil.Error):
            for child in root.children(recursive=True):
                _add(found, child)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in found and process.environ().get(ATTEMPT_VARIABLE) == attempt:
                _add(found, process)
    if keeper:
        found.pop(keeper.pid, None)
    found.pop(os.getpid(), None)
    return sorted(found.values(), key=lambda identity: identity.started)


def _add(found: dict[int, Identity], process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            found[process.pid] = Identity(process.pid, process.create_time())


def usage(keeper: Identity) -> Usage | None:
    """Return what the keeper's descendants used, or None when that cannot be seen."""
    root = _live(keeper)
    if root is None:
        return None
    cpu, io, states = 0.0, 0, []
    try:
        children = root.children(recursive=True)
    except psutil.Error:
        return None
    for child in children:
        with contextlib.suppress(psutil.Error):
            with child.oneshot():
                times = child.cpu_times()
                cpu += times.user + times.system
                states.append((child.pid, child.name(), str(child.status())))
                counters = child.io_counters()
            io += getattr(counters, "read_chars", counters.read_bytes)
            io += getattr(counters, "write_chars", counters.write_bytes)
    return Usage(cpu, io, tuple(states))


@dataclass(frozen=True)
class Ending:
    """What the kill ladder did."""

    rungs: tuple[str, ...]
    """The signals that were needed, in order; empty when nothing lived."""
    left: tuple[int, ...]
    """Processes that outlived SIGKILL, in an uninterruptible kernel wait."""
    seconds: float


def end(find: Callable[[], list[Identity]], clock: Clock, *, grace: float, reap: float) -> Ending:
    """End every process that `find` returns: SIGCONT, SIGTERM, `grace` seconds, SIGKILL, until `find` is empty.

    Gives up `reap` seconds after the first SIGKILL and reports what is left.
    """
    began = clock.monotonic()
    living = find()
    rungs: list[str] = []
    if living:
        rungs += ["SIGCONT", "SIGTERM"]
        _signal(living, "SIGCONT")
        _terminate(living)
        living = _wait(find, living, clock, grace)
    deadline = clock.monotonic() + reap
    while living and clock.monotonic() < deadline:
        if "SIGKILL" not in rungs:
            rungs.append("SIGKILL")
        for identity in living:
            process = _live(identity)
            with contextlib.suppress(*_GONE, psutil.AccessDenied):
                if process is not None:
                    process.kill()
        living = _wait(find, living, clock, 20 * _LADDER_LOOK)
    return Ending(tuple(rungs), tuple(i.pid for i in living), clock.monotonic() - began)


def _wait(find: Callable[[], list[Identity]], living: list[Identity], clock: Clock, seconds: float) -> list[Identity]:
    """Wait until all of `living` are gone, then look again for what they started meanwhile."""
    deadline = clock.monotonic() + seconds
    while clock.monotonic() < deadline:
        if not any(identity.alive() for identity in living):
            return find()
        clock.sleep(_LADDER_LOOK)
    return find()


def _signal(living: Iterable[Identity], name: str) -> None:
    number = getattr(signal, name, None)
    for process in filter(None, map(_live, living)):
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            if number is not None:
                process.send_signal(number)


def _terminate(living: Iterable[Identity]) -> None:
    for process in filter(None, map(_live, living)):
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            process.terminate()


def detached(argv: list[str], *, env: dict[str, str], cwd: Path, output: int = subprocess.DEVNULL) -> int:
    """Start a process that outlives this one, its terminal and its signals; return its number.

    Raises OSError when it cannot be started.
    """
    _bury()
    windows = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "DETACHED_PROCESS", 0)
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=os.name != "nt",
        creationflags=windows if os.name == "nt" else 0,
    )
    _CHILDREN[process.pid] = process
    return process.pid


# Kept so that a keeper that ends is buried instead of staying a zombie until we end ourselves.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _bury() -> None:
    """Bury the detached processes of ours that have ended."""
    for pid in [pid for pid, process in _CHILDREN.items() if process.poll() is not None]:
        del _CHILDREN[pid]


@atexit.register
def _let_go() -> None:
    """Let the detached processes be: they outlive us on purpose, which Popen would warn about."""
    for process in _CHILDREN.values():
        if process.poll() is None:
            process.returncode = 0


def stacks(pids: Iterable[int], seconds: float) -> Iterator[tuple[int, str]]:
    """Yield (pid, Python stacks) of each process that shows them within `seconds`; the rest say why they do not."""
    beside = Path(sys.executable).with_name("py-spy.exe" if os.name == "nt" else "py-spy")
    program = str(beside) if beside.exists() else "py-spy"
    for pid in pids:
        said = ""
        # Blocking first, because it is exact; it fails on a stopped process, which the second reads.
        for extra in ([], ["--nonblocking"]):
            try:
                done = subprocess.run(
                    [program, "dump", "--pid", str(pid), *extra], capture_output=True, text=True, timeout=seconds
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                said = f"no stacks: {error}"
                continue
            if done.returncode == 0:
                said = done.stdout
                break
            said = f"no stacks: {done.stderr.strip() or 'py-spy failed'}"
        yield pid, said
