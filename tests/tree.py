"""Programs with all they start, found again by a mark in the environment: who of them lives, and when the last died."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.warm import TAG, Starter, WarmProcess

ROOT = Path(__file__).resolve().parent.parent

_LOOK = 0.02
_SETTLED = 1.0  # a process that is this old has the environment that it keeps
_WAITING = re.compile(r"^waiting (\d+\.\d+)$", re.MULTILINE)


class Tree:
    """Every living process that carries a mark, wherever it has moved to."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._ours: dict[int, psutil.Process] = {}
        self._others: set[int] = set()

    def living(self) -> list[int]:
        """Return the pids of those that live (zombies do not)."""
        pids = set(psutil.pids())
        self._others &= pids
        for pid in pids - self._others - self._ours.keys() - {os.getpid()}:
            self._meet(pid)
        return [pid for pid, process in self._ours.items() if _lives(process)]

    def kill(self) -> list[int]:
        """Kill all of them, stopped ones too, and return their pids."""
        killed: list[int] = []
        while living := self.living():
            for pid in living:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            killed += [pid for pid in living if pid not in killed]
            time.sleep(_LOOK)
        return killed

    def _meet(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.environ().get(TAG) == self._tag:
                self._ours[pid] = process
                return
            if time.time() - process.create_time() < _SETTLED:
                return  # between its fork and its exec it shows its parent's
        self._others.add(pid)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@dataclass(frozen=True)
class Outcome:
    """How a program came to its end."""

    code: int | None
    """Its exit code; a signal as a negative number; None when it had to be killed."""
    gone: float
    """Seconds from the beginning of its wait to the death of the last process of its tree."""
    left: tuple[int, ...]
    """The processes that had to be killed after the hard limit."""
    output: str
    """What it wrote."""


def run(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    hard: float,
    warm: Starter | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a program until nothing of it lives, for `hard` seconds at the most.

    Its wait begins with its last line "waiting MONOTONIC-TIME", or with its start when it writes none. With
    `warm` the command is a program of python's and its arguments, and starts with torch imported.
    """
    tag = uuid.uuid4().hex
    log = folder / "program.log"
    log.touch()
    tree = Tree(tag)
    began = time.monotonic()
    program = _start(command, folder, {**env, TAG: tag, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}, log, warm)
    code = program.poll()
    while code is None or tree.living():
        if time.monotonic() - began > hard or stop():
            break
        time.sleep(_LOOK)
        code = program.poll() if code is None else code
    ended = time.monotonic()
    left = tree.kill()
    if isinstance(program, subprocess.Popen):
        program.wait(hard)
    output = log.read_text(errors="replace")
    begins = _WAITING.findall(output)
    return Outcome(code, ended - (float(begins[-1]) if begins else began), tuple(left), output)


def _start(
    command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, warm: Starter | None
) -> subprocess.Popen[bytes] | WarmProcess:
    if warm is not None:
        return warm.start(command, env, folder, log)
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
