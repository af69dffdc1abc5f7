"""The free space of a folder, asked on a thread: a network share that is gone does not answer at all."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fluxguard.clock import Clock

_ANSWER = 10.0
"""A share that lives answers sooner."""
_FRESH = 120.0

Place = str | os.PathLike[str]


class _Question:
    """One question, and its answer when it has come."""

    def __init__(self, ask: Callable[[Place], int], folder: Place, now: float) -> None:
        self.at = now
        self.free: int | None = None
        self.done = threading.Event()
        self._ask = ask
        self._folder = folder
        threading.Thread(target=self._find, name="disk", daemon=True).start()

    def _find(self) -> None:
        try:
            self.free = self._ask(self._folder)
        except (OSError, ValueError):
            self.free = None
        self.done.set()


def _free(folder: Place) -> int:
    return shutil.disk_usage(folder).free


@dataclass
class Disk:
    """Asks for the free space of one folder; one question at a time, however long it takes."""

    folder: Place
    clock: Clock
    ask: Callable[[Place], int] = _free
    _open: _Question | None = None
    _known: int | None = None
    _known_at: float = -math.inf
    silent: bool = field(default=False, init=False)
    """Whether the last question was not answered in time."""

    def look(self, *, ask: bool = False) -> int | None:
        """Return the free bytes as last told, without waiting; None when unknown. `ask` asks for a later look."""
        now = self.clock.monotonic()
        if self._open is not None and self._open.done.is_set():
            self._known, self._known_at, self._open = self._open.free, self._open.at, None
        self.silent = self._open is not None and now - self._open.at > _ANSWER
        if ask and self._open is None:
            with contextlib.suppress(RuntimeError):  # no more threads: unknown, like all that cannot be asked
                self._open = _Question(self.ask, self.folder, now)
        return None if self.silent or now - self._known_at > _FRESH else self._known


def free(folder: Place, seconds: float = _ANSWER) -> int | None:
    """Return the free bytes of a folder, or None when they are not told within `seconds`."""
    question = _Question(_free, folder, 0.0)
    question.done.wait(seconds)
    return question.free
