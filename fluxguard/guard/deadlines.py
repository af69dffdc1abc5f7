"""The two verbs: `fail_after` raises, `exit_after` ends the process. Scopes nest, and the earliest deadline wins."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.watcher import Wait, awake, watcher

__all__ = ["Scopes", "Verdict", "check", "end_process", "exit_after", "fail_after", "remaining"]

F = TypeVar("F", bound=Callable[..., Any])
_Scope = tuple[float, str, float]


def positive(seconds: float | None) -> float:
    """Return `seconds`, infinite for None. Raises ValueError for 0 or less."""
    if seconds is None:
        return math.inf
    if not seconds > 0:
        raise ValueError(f"`seconds` must be more than 0 (None means no limit), not {seconds!r}")
    return float(seconds)


class Scopes(threading.local):
    """The cooperative deadlines of one thread, in awake seconds, outermost first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.open: list[_Scope] = []

    def remaining(self) -> float:
        """Return seconds to the earliest deadline; infinite without one, negative when it has passed."""
        if not self.open:
            return math.inf
        earliest = min(self.open)[0]
        return earliest if earliest == math.inf else earliest - self.now()

    def check(self) -> None:
        """Raise DeadlineExceeded, naming the earliest scope, when its deadline has passed."""
        if self.open and self.remaining() <= 0:
            _, what, seconds = min(self.open)
            raise DeadlineExceeded(what, seconds, "if it is only slow, give its fail_after more seconds")


_scopes = Scopes(awake)
_hooked: list[bool] = []


def _hook() -> None:
    """Let a forked child begin without scopes: a worker may live long after the block in which it was made."""
    _hooked.append(True)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _scopes.open.clear())


class Block(contextlib.ContextDecorator):
    """A block that may be used again, inside itself, and on several threads at once; also as a decorator.

    Decorating a generator or a coroutine function raises TypeError: the block would end before its body begins.
    """

    def __init__(self) -> None:
        self._entered: dict[int, list[Any]] = {}

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"{type(self).__name__} cannot decorate {function.__qualname__}; use it as a block inside")
        return super().__call__(function)

    def _enter(self, opened: Any) -> None:
        self._entered.setdefault(threading.get_ident(), []).append(opened)

    def _leave(self) -> Any:
        """Return what this thread entered last; a generator that another thread ends has entered on its own."""
        thread = threading.get_ident()
        if thread not in self._entered:
            thread = next(reversed(self._entered))
        mine = self._entered[thread]
        opened = mine.pop()
        if not mine:
            del self._entered[thread]
        return opened


class fail_after(Block):
    """A block in which our own waits give up, with DeadlineExceeded, `seconds` after it was entered.

    Cooperative and of this thread only: foreign code inside is not interrupted, and a forked child has no limit. Time
    in which the machine slept, or this process was stopped, does not count. `None` means no limit. Raises ValueError
    for 0 or less.
    """

    def __init__(self, seconds: float | None, what: str, scopes: Scopes | None = None) -> None:
        super().__init__()
        self._seconds = positive(seconds)
        self._what = what
        self._scopes = scopes or _scopes
        if not _hooked:
            _hook()

    def __enter__(self) -> fail_after:
        scopes = self._scopes
        seconds = self._seconds
        scope = (seconds if seconds == math.inf else scopes.now() + seconds, self._what, seconds)
        scopes.open.append(scope)
        self._enter((scopes.open, scope))
        return self

    def __exit__(self, *_: object) -> None:
        opened, scope = self._leave()
        if scope in opened:  # not in a forked child, which has none
            opened.remove(scope)


class exit_after(Block):
    """A block that ends the process, stacks first, when it lasts longer than `seconds`.

    For waits that cannot give up by themselves. Inert until the trainer has called `train_begins`, and in its forked
    children. Time in which the machine slept, or this process was stopped, does not count. `None` means no limit.

    `cause` is one of those of a verdict, `again` whether another attempt may pass, `file` what the wait is about: the
    supervisor is told. With `backed` the limit holds even if C code keeps the interpreter from the first moment on,
    which costs about 0.1 ms; without it, from the watcher's next tick on, at most a second later.

    Raises ValueError for 0 or less.
    """

    def __init__(
        self,
        seconds: float | None,
        what: str,
        cause: str = "wait",
        *,
        again: bool = True,
        file: str | None = None,
        backed: bool = True,
    ) -> None:
        super().__init__()
        self._seconds = positive(seconds)
        self._what = what
        self._cause = cause
        self._again = again
        self._file = file
        self._backed = backed

    def __enter__(self) -> exit_after:
        if self._seconds == math.inf or not pulse.begun():
            self._enter(None)
            return self
        wait = Wait(self._what, self._seconds, time.monotonic(), self._end, True)
        self._enter(wait)
        try:
            watcher().open(wait, backed=self._backed)
        except BaseException:  # of a signal's handler: then the block is never entered, and nothing would close it
            watcher().close(self._leave())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        wait = self._leave()
        if wait is not None:
            watcher().close(wait)

    def _end(self, wait: Wait) -> None:
        end_process(
            Verdict(
                what=wait.what,
                cause=self._cause,
                limit=wait.limit,
                waited=time.monotonic() - wait.since,
                again=self._again,
                file=self._file,
            )
        )


def remaining() -> float:
    """Return seconds to the earliest cooperative deadline of this thread; infinite without one."""
    return _scopes.remaining()


def open_scopes() -> list[_Scope]:
    """Return the open scopes of this thread, each beginning with its deadline in awake seconds; changes as they do."""
    return _scopes.open


def check() -> None:
    """Raise DeadlineExceeded when the earliest cooperative deadline of this thread has passed."""
    _scopes.check()
