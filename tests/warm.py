"""Python programs that start with torch already imported: a starter imports it once and forks for each program.

A program started so is like one of its own but for four things: torch and accelerate were imported before its first
line, the collector of garbage leaves what came with them alone, what it reads of its environment was set in its
memory (of the variables of python PYTHONWARNINGS is heeded), and its command line in /proc is the starter's. It saves
the seconds that the import takes, and those of an end that would copy every page to take it apart; nothing else is
shared. Linux only.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TAG = "FLUXGUARD_TEST_TAG"
TAG_LENGTH = 32
"""Of the mark by which every process of a test is found again; the same for all, because it is written in place."""

_ROOT = Path(__file__).resolve().parent.parent
_MODULES = ("torch", "accelerate", "torch._dynamo")  # the last because every optimizer imports it
_WAIT = 60.0
_POLL = 0.1


class WarmProcess:
    """A program that the starter forked, seen as a subprocess.Popen is."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self._starter = starter
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """Its exit code when it is known to have ended (a signal as a negative number)."""
        return self._starter.codes.get(self.pid)

    def poll(self) -> int | None:
        """Return its exit code, or None while it lives."""
        self._starter.listen(0)
        return self.returncode

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int | None:
        """Wait for its end, so many seconds at the most, and return its exit code."""
        until = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < until:
            self._starter.listen(_POLL)
        return self.returncode


class Starter:
    """The process that has imported torch, and the programs that it started."""

    def __init__(self, modules: Sequence[str] = _MODULES) -> None:
        self.codes: dict[int, int] = {}
        self._pids: list[int] = []
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._rest = b""
        env = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env | {TAG: "0" * TAG_LENGTH},
        )

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> WarmProcess:
        """Start `python ARGV` in a session of its own; its output goes to `log`."""
        request = {"argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log)}
        assert self._server.stdin is not None
        with self._turn:
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
            while not self._pids:
                self.listen(_WAIT)
                assert self._server.poll() is None, "the starter has ended"
            return WarmProcess(self, self._pids.pop())

    def listen(self, seconds: float) -> None:
        """Take note of what the starter has said; wait for it as long as that."""
        assert self._server.stdout is not None
        fd = self._server.stdout.fileno()
        with self._lock:
            if not select.select([fd], [], [], seconds)[0]:
                return
            *lines, self._rest = (self._rest + os.read(fd, 65536)).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if "code" in said:
                    self.codes[said["pid"]] = said["code"]
                else:
                    self._pids.append(said["pid"])

    def close(self) -> None:
        """End the starter; its programs are others' business."""
        self._server.kill()
        self._server.communicate()


def _serve(requests: int, replies: int) -> dict[str, Any]:
    """Fork for each request, tell of each end, and return, in the fork, the request."""
    told, telling = os.pipe()
    os.set_blocking(telling, False)
    signal.set_wakeup_fd(telling)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready = select.select([requests, told], [], [])[0]
        if told in ready:
            os.read(told, 4096)
            _reap(replies)
        if requests in ready:
            said = os.read(requests, 65536)
            if not said:
                os._exit(0)
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for fd in (told, telling, requests, replies):
                        os.close(fd)
                    return dict(json.loads(line))
                os.write(replies, json.dumps({"pid": pid}).encode() + b"\n")


def _reap(replies: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        os.write(replies, json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _become(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Turn this process into the one asked for; return its code and the globals of its main module."""
    os.setsid()
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
    _mark(request["env"][TAG])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    _warn(os.environ.get("PYTHONWARNINGS", ""))
    program = Path(request["argv"][0])
    sys.argv[:] = request["argv"]
    given = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [str(program.parent), *given, *(path for path in sys.path[1:] if path != str(_ROOT))]
    module = ModuleType("__main__")
    module.__file__ = str(program)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    return compile(program.read_bytes(), str(program), "exec"), module.__dict__


def _warn(filters: str) -> None:
    """Treat warnings as python does that is started with these filters, each no more than ACTION::CATEGORY."""
    for one in filter(None, filters.split(",")):
        action, _, category = one.split(":")
        warnings.simplefilter(action, getattr(builtins, category))  # type: ignore[arg-type]


def _mark(tag: str) -> None:
    """Write the tag over the one this process was started with, which is what its environment in /proc shows."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    ctypes.memmove(libc.getenv(TAG.encode()), tag.encode(), TAG_LENGTH)


if __name__ == "__main__":
    _requests, _replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for _name in sys.argv[1:]:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(_name)
    gc.collect()
    gc.freeze()
    exec(*_become(_serve(_requests, _replies)))
