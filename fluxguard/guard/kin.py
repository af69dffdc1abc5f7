"""What descends from this process: its workers with all below them, and the rest, which cleans up after itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_PROC = Path("/proc")
_COMMAND = "cmdline"
_WORKERS = (b"multiprocessing.spawn", b"multiprocessing.forkserver")
_ROUNDS = 3  # a pool starts new workers for those that were killed, while it can

Children = Mapping[int, Iterable[int]]


def end_all() -> None:
    """Kill the workers of this process with all that descends from them, and ask its other descendants to end.

    Workers are what multiprocessing has started and forked copies of this process, stopped ones too. The others, such
    as a tracker's service or a git, may have something to clean up. Who they are is looked up before the first of them
    is killed, because an orphan no longer shows whose it was. Without /proc only the workers are known, and of these
    only those that multiprocessing has started. Never raises.
    """
    killed: set[int] = set()
    asked: set[int] = set()
    for _ in range(_ROUNDS):
        children = _children()
        doomed = [pid for pid in workers(children, os.getpid(), _is_worker) if pid not in killed]
        others = [pid for pid in below(children, [os.getpid()]) if pid not in asked and pid not in killed]
        if not doomed and not others:
            return
        for pid in doomed:
            _send(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        killed.update(doomed)
        for pid in (other for other in others if other not in killed):
            _send(pid, signal.SIGTERM)
            _send(pid, getattr(signal, "SIGCONT", None))  # a stopped one hears nothing before
            asked.add(pid)


def kill_below(pids: Iterable[int]) -> Callable[[], None]:
    """Return what kills all that descends from `pids`; it is looked up now, because an orphan shows no parent."""
    found = below(_children(), pids)

    def kill() -> None:
        for pid in found:
            _send(pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    return kill


def below(children: Children, roots: Iterable[int]) -> list[int]:
    """Return all that descends from `roots`, parents first."""
    found: dict[int, None] = {}
    waiting = list(roots)
    for parent in waiting:
        for child in children.get(parent, ()):
            if child not in found:  # a pid may come back as its own descendant while the list is made
                found[child] = None
                waiting.append(child)
    return list(found)


def workers(children: Children, parent: int, is_worker: Callable[[int], bool]) -> list[int]:
    """Return the workers among the children of `parent`, with all that descends from them."""
    known = _of_multiprocessing()
    known += [pid for pid in children.get(parent, ()) if pid not in known and is_worker(pid)]
    return list(dict.fromkeys([*known, *below(children, known)]))


def _children() -> Children:
    """Return the children of every process of this machine; of none where there is no /proc."""
    found: dict[int, list[int]] = {}
    if not sys.platform.startswith("linux"):
        return found
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROC):
            if name.isdigit() and (parent := _parent(name)):
                found.setdefault(parent, []).append(int(name))
    return found


def _parent(pid: str) -> int:
    """Return the parent of a process; 0 when it has ended."""
    try:
        return int((_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _of_multiprocessing() -> list[int]:
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else [child.pid for child in multiprocessing.active_children() if child.pid]


def _is_worker(pid: int) -> bool:
    command = _command(pid)
    return command == _command("self") or any(name in command for name in _WORKERS)


def _command(pid: int | str) -> bytes:
    try:
        return (_PROC / str(pid) / _COMMAND).read_bytes()
    except OSError:
        return b"\0"


def _send(pid: int, number: int | None) -> None:
    if number is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
