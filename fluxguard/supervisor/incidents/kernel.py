"""What the kernel says about a process: what it waits for, in which call, on which file. Reads, never touches."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from fluxguard.supervisor.sensing.identity import UNSEEN, Identity

_PROC = Path("/proc")
_MOST_THREADS = 64
_MOST_OPEN = 4096
_LONGEST_STACK = 4096
_WANTED = ("VmRSS", "VmSwap", "VmHWM", "RssShmem", "SigPnd", "ShdPnd", "SigBlk", "voluntary_ctxt_switches", "Seccomp")
_X86 = {
    0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 20: "writev", 23: "select",
    26: "msync", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait4",
    72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 82: "rename", 87: "unlink", 128: "rt_sigtimedwait",
    202: "futex", 208: "io_getevents", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 426: "io_uring_enter",
}  # fmt: skip
_ARM = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 67: "pread64",
    68: "pwrite64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 82: "fsync", 83: "fdatasync", 95: "waitid",
    98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 203: "connect", 207: "recvfrom", 212: "recvmsg",
    260: "wait4", 426: "io_uring_enter",
}  # fmt: skip
_CALLS = {"x86_64": _X86, "aarch64": _ARM}
_ON_A_FILE = {
    "read", "write", "pread64", "pwrite64", "writev", "ioctl", "connect", "accept", "accept4", "recvfrom", "recvmsg",
    "fcntl", "flock", "fsync", "fdatasync",
}  # fmt: skip


def described(living: Iterable[Identity], roles: dict[int, str]) -> str:
    """Return what is to be seen of each process, for a person; `roles` says what each of them does."""
    return "\n".join(_described(one, roles.get(one.pid, "")) for one in living)


def _described(identity: Identity, role: str) -> str:
    head = f"process {identity.pid}{f' ({role})' if role else ''}"
    if identity.process() is None:
        return f"{head}\n  is gone\n"
    lines = _on_linux(identity.pid) if sys.platform.startswith("linux") else _elsewhere(identity)
    return "\n".join([head, *(f"  {line}" for line in lines), ""])


def _on_linux(pid: int) -> list[str]:
    folder = _PROC / str(pid)
    status = _status(folder / "status")
    lines = [
        f"name          {status.get('Name', 'unknown')}",
        f"state         {status.get('State', 'unknown')}",
        f"waits in      {_wait(folder)}",
        f"system call   {call(folder)}",
        f"open files    {_open_files(folder)}",
        f"threads       {status.get('Threads', 'unknown')}: {_threads(folder)}",
        *(f"{name:13} {status[name]}" for name in _WANTED if name in status),
    ]
    stack = _text(folder / "stack")[:_LONGEST_STACK].splitlines()
    return [*lines, "kernel stack", *(f"  {line}" for line in stack or ["unknown (only root may read it)"])]


def _elsewhere(identity: Identity) -> list[str]:
    process = identity.process()
    if process is None:
        return ["is gone"]
    lines = []
    for name in ("name", "status", "num_threads", "memory_info", "cpu_times", "num_handles", "num_fds"):
        with contextlib.suppress(*UNSEEN):
            lines.append(f"{name:13} {getattr(process, name)()}")
    return lines


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _status(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name: " ".join(value.split()) for name, _, value in pairs}


def _wait(folder: Path) -> str:
    said = _text(folder / "wchan")
    return {"": "unknown", "0": "nothing that the kernel tells"}.get(said, said)


def call(folder: Path) -> str:
    """Return the system call that a thread is in, and on which file, from its folder in /proc."""
    words = _text(folder / "syscall").split()
    if not words:
        return "unknown (not allowed to see it)"
    if not words[0].lstrip("-").isdigit():
        return f"none ({words[0]})"
    name = _CALLS.get(platform.machine(), {}).get(int(words[0]), f"number {words[0]}")
    if name not in _ON_A_FILE or len(words) < 2:
        return name
    with contextlib.suppress(OSError, ValueError):
        return f"{name} on {os.readlink(folder / 'fd' / str(int(words[1], 16)))}"
    return f"{name} on file {words[1]}"


def _open_files(folder: Path) -> str:
    try:
        count = sum(1 for _, _ in zip(range(_MOST_OPEN), os.scandir(folder / "fd"), strict=False))
    except OSError:
        return "unknown"
    return f"{count}{' or more' if count == _MOST_OPEN else ''}"


def _threads(folder: Path) -> str:
    """Return how many threads wait in which kernel function, in which state."""
    try:
        threads = sorted(os.listdir(folder / "task"), key=int)[:_MOST_THREADS]
    except (OSError, ValueError):
        return "unknown"
    seen = Counter(_thread(folder / "task" / thread) for thread in threads)
    return ", ".join(f"{count} {where}" for where, count in seen.most_common())


def _thread(folder: Path) -> str:
    state = _text(folder / "stat").rpartition(")")[2].split()[:1]
    wait = _text(folder / "wchan")
    return " ".join([*(state or ["?"]), *([wait] if wait not in ("", "0") else [])])


def biggest_first(living: Sequence[Identity]) -> list[Identity]:
    """Return processes by the memory they hold, the biggest first: the one that trains holds the model."""
    return sorted(living, key=_resident, reverse=True)


def _resident(identity: Identity) -> int:
    process = identity.process()
    with contextlib.suppress(*UNSEEN, psutil.Error):
        return int(process.memory_info().rss) if process else 0
    return 0
