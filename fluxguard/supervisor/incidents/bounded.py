"""Work that may hang, done for a bounded time: what the kernel holds up must not hold up the end of a trainer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")

_BURIED = 0.5
_NOT_OURS = ("DEBUGINFOD_URLS", "PYTHONPATH", "PYTHONHOME")
"""Of our environment: what would make a program that we ask slow, or another one."""


class NotFound(Exception):
    """Raised by work that finds nothing, with why in words."""


class Task:
    """Work in a thread of its own that is left behind when it takes too long, or fails: `result` says which."""

    def __init__(self, name: str, work: Callable[[], Found]) -> None:
        self._name, self._found, self._failed = name, None, ""
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Found]) -> None:
        try:
            self._found = work()  # type: ignore[assignment] # of any kind; `result` is as untyped as its caller
        except Exception as error:  # noqa: BLE001 - evidence that fails costs a line in the report, never the decision
            words = str(error) if isinstance(error, NotFound) else f"{type(error).__name__}: {error}"
            self._failed = f"not available: {words}"

    def result(self, seconds: float) -> tuple[object, str]:
        """Return what was found within `seconds` and an empty text, or None and why there is nothing."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            return None, f"not available: no answer within the time for evidence ({self._name})"
        return self._found, self._failed


@dataclass(frozen=True)
class Said:
    """What another program said."""

    code: int | None
    """Its exit code; None when it did not end in time."""
    out: str
    err: str


def ask(argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> Said:
    """Run a program for at most `seconds`; one that even SIGKILL does not end at once is left behind.

    Raises NotFound when it cannot be started.
    """
    clean = {name: value for name, value in (env or os.environ).items() if name not in _NOT_OURS}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=clean,
        )
    except OSError as error:
        raise NotFound(f"{argv[0]} cannot be run ({error.strerror})") from None
    try:
        out, err = process.communicate(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return _given_up(process)
    return Said(process.returncode, out, err)


def _given_up(process: subprocess.Popen[str]) -> Said:
    process.kill()
    out = err = ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        out, err = process.communicate(timeout=_BURIED)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.returncode is None:
        process.returncode = -1  # it hangs in the kernel: nothing waits for it, and nobody is to be warned of that
    return Said(None, out or "", err or "")
