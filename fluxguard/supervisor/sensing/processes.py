"""The one place that touches processes: identity, what they use, and how they end. psutil errors stop here."""

from __future__ import annotations

import atexit
import contextlib
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
from fluxguard.supervisor.sensing import procfs
from fluxguard.supervisor.sensing.identity import UNSEEN, Identity
from fluxguard.supervisor.sensing.procfs import Tree

_LADDER_LOOK = 0.05
_KILL_AGAIN = 1.0
NO_STACKS = "no stacks"


@dataclass(frozen=True)
class Usage:
    """What the processes of an attempt used so far, and what they are doing."""

    cpu: float
    """Seconds of processor time."""
    io: int
    """Bytes read and written, caches included where the platform counts them."""
    states: tuple[tuple[int, str, str], ...]
    """(pid, name, status) of each process."""
    rss: int | None = None
    """Bytes of memory that they hold together, what they share counted for each; None when unknown."""
    waits: tuple[tuple[int, str], ...] = ()
    """(pid, function of the kernel) of each process in an uninterruptible wait, where the kernel tells."""

    @property
    def stopped(self) -> tuple[int, ...]:
        """Processes that somebody stopped."""
        return tuple(pid for pid, _, status in self.states if status in (psutil.STATUS_STOPPED, "tracing-stop"))

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Processes in an uninterruptible kernel wait."""
        return tuple(pid for pid, _, status in self.states if status == psutil.STATUS_DISK_SLEEP)


def of_attempt(attempt: str, keeper: Identity | None) -> list[Identity]:
    """Return every process of the attempt: descendants of its keeper, whoever carries its uuid, and their descendants.

    The keeper itself is left out. The uuid finds processes that left the tree by setsid or lost their parents; one
    whose environment cannot be read is found by its parents, which on Linux the keeper becomes when it has lost them.
    """
    parents: dict[int, int] = {}
    kin: set[int] = {keeper.pid} if keeper is not None and keeper.alive() else set()
    for process in psutil.process_iter():
        with contextlib.suppress(*UNSEEN):
            parents[process.pid] = process.ppid()
            if process.environ().get(ATTEMPT_VARIABLE) == attempt:
                kin.add(process.pid)
    while born := {pid for pid, parent in parents.items() if parent in kin and pid not in kin}:
        kin |= born
    found: dict[int, Identity] = {}
    for pid in kin - {keeper.pid if keeper else 0, os.getpid()}:
        _add(found, pid)
    return sorted(found.values(), key=lambda identity: identity.started)


def _add(found: dict[int, Identity], pid: int) -> None:
    with contextlib.suppress(*UNSEEN):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            identity = Identity.of(pid)
            if identity is not None:
                found[pid] = identity


def carrying(identities: Iterable[Identity], variable: str) -> list[Identity]:
    """Return those that have a variable in the environment that they were started with."""
    found = []
    for identity in identities:
        with contextlib.suppress(*UNSEEN):
            process = identity.process()
            if process is not None and variable in process.environ():
                found.append(identity)
    return found


def workers(identities: Iterable[Identity]) -> frozenset[int]:
    """Return those that were forked off another of them to do the same program's work, as DataLoader workers are."""
    lines: dict[int, tuple[int, list[str]]] = {}
    for process in filter(None, (identity.process() for identity in identities)):
        with contextlib.suppress(*UNSEEN):
            lines[process.pid] = (process.ppid(), process.cmdline())
    return frozenset(
        pid for pid, (parent, line) in lines.items() if parent in lines and line and line == lines[parent][1]
    )


def names(identity: Identity, word: str) -> bool:
    """Return whether a process holds a word in its command line."""
    process = identity.process()
    try:
        return process is not None and any(word in part for part in process.cmdline())
    except UNSEEN:
        return False


def usage(keeper: Identity | None, orphans: Iterable[Identity] = (), tree: Tree | None = None) -> Usage | None:
    """Return what the keeper's descendants and these orphans used, or None when that cannot be seen.

    `tree` remembers from one call to the next who is none of them.
    """
    seen = [process for identity in orphans if (process := identity.process()) is not None]
    root = keeper.process() if keeper else None
    try:
        seen += _children(root, tree or Tree()) if root else []
    except UNSEEN:
        return None
    if not seen:
        return None
    cpu, io, rss, states = 0.0, 0, 0, []
    for child in seen:
        with contextlib.suppress(*UNSEEN):
            with child.oneshot():
                times = child.cpu_times()
                cpu += times.user + times.system
                states.append((child.pid, child.name(), str(child.status())))
                rss += child.memory_info().rss
                counters = child.io_counters()  # type: ignore[attr-defined,unused-ignore] # not on macOS
            io += getattr(counters, "read_chars", counters.read_bytes)
            io += getattr(counters, "write_chars", counters.write_bytes)
    waits = ((pid, _kernel_wait(pid)) for pid, _, status in states if status == psutil.STATUS_DISK_SLEEP)
    return Usage(cpu, io, tuple(states), rss, tuple((pid, where) for pid, where in waits if where))


def _children(root: psutil.Process, tree: Tree) -> Iterator[psutil.Process]:
    if not procfs.LINUX:
        yield from root.children(recursive=True)
        return
    for pid in tree.below(root.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _kernel_wait(pid: int) -> str:
    """Return the function of the kernel that a process waits in; empty where that is not told."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text().strip("0\n ")
    except OSError:
        return ""


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
            process = identity.process()
            with contextlib.suppress(*UNSEEN):
                if process is not None:
                    process.kill()
        living = _wait(find, living, clock, _KILL_AGAIN)
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
    for process in filter(None, (identity.process() for identity in living)):
        with contextlib.suppress(*UNSEEN):
            if number is not None:
                process.send_signal(number)


def _terminate(living: Iterable[Identity]) -> None:
    for process in filter(None, (identity.process() for identity in living)):
        with contextlib.suppress(*UNSEEN):
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


def exit_code(pid: int) -> int | None:
    """Return how a detached process of ours ended (its signal as a negative number), or None while it lives."""
    return _CHILDREN[pid].poll() if pid in _CHILDREN else None


def _bury() -> None:
    """Bury the detached processes of ours that have ended."""
    for process in _CHILDREN.values():
        process.poll()  # how it ended stays known to whoever asks for it later


@atexit.register
def _let_go() -> None:
    """Let the detached processes be: they outlive us on purpose, which Popen would warn about."""
    for process in _CHILDREN.values():
        if process.poll() is None:
            process.returncode = 0


def stacks(pids: Iterable[int], clock: Clock, *, until: float) -> Iterator[tuple[int, str]]:
    """Yield (pid, Python stacks) of each process; what does not show them before `until` (monotonic) says why."""
    beside = Path(sys.executable).with_name("py-spy.exe" if os.name == "nt" else "py-spy")
    program = str(beside) if beside.exists() else "py-spy"
    for pid in pids:
        said = f"{NO_STACKS}: no time left for them"
        # Blocking first, because it is exact; it fails on a stopped process, which the second reads.
        for extra in ([], ["--nonblocking"]):
            left = until - clock.monotonic()
            if left <= 0:
                break
            argv = [program, "dump", "--pid", str(pid), *extra]
            try:
                done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="replace", timeout=left)
            except (OSError, subprocess.TimeoutExpired) as error:
                said = f"{NO_STACKS}: {error}"
                continue
            if done.returncode == 0:
                said = done.stdout
                break
            said = f"{NO_STACKS}: {done.stderr.strip() or 'py-spy failed'}"
        yield pid, said
