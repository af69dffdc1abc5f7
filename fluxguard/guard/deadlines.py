"""The two verbs: `fail_after` raises, `exit_after` ends the process. Scopes nest, and the earliest deadline wins."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
from types import TracebackType

from fluxguard import limits as _limits
from fluxguard.clock import Clock, SystemClock
from fluxguard.errors import DeadlineExceeded, LimitsError
from fluxguard.guard import pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.watcher import Wait, watcher
from fluxguard.limits import Limits, WaitLimits
from fluxguard.rundir import LIMITS_VARIABLE

__all__ = ["Scopes", "Verdict", "all_limits", "check", "end_process", "exit_after", "fail_after", "limits", "remaining"]


@functools.lru_cache(maxsize=1)
def all_limits() -> Limits:
    """Return the limits of this run: from the file in FLUXGUARD_LIMITS, else (or if it is broken) the defaults."""
    path = os.environ.get(LIMITS_VARIABLE)
    if path:
        # A limits file that cannot be read must not keep a training from starting.
        with contextlib.suppress(OSError, LimitsError):
            return _limits.read(path)
    return Limits()


def limits() -> WaitLimits:
    """Return how long each wait may last."""
    return all_limits().wait


def positive(seconds: float | None) -> float:
    """Return `seconds`, infinite for None. Raises ValueError for 0 or less."""
    if seconds is None:
        return math.inf
    if not seconds > 0:
        raise ValueError(f"`seconds` must be more than 0 (None means no limit), not {seconds!r}")
    return float(seconds)


class Scopes(threading.local):
    """The cooperative deadlines of one thread, outermost first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: list[tuple[float, str, float]] = []

    def push(self, seconds: float, what: str) -> None:
        """Open a scope."""
        self._open.append((self._clock.monotonic() + seconds, what, seconds))

    def pop(self) -> None:
        """Close the innermost scope."""
        self._open.pop()

    def remaining(self) -> float:
        """Return seconds to the earliest deadline; infinite without one, negative when it has passed."""
        if not self._open:
            return math.inf
        return min(self._open)[0] - self._clock.monotonic()

    def check(self) -> None:
        """Raise DeadlineExceeded, naming the earliest scope, when its deadline has passed."""
        if self._open and self.remaining() <= 0:
            _, what, seconds = min(self._open)
            raise DeadlineExceeded(what, seconds)


_scopes = Scopes(SystemClock())


class fail_after(contextlib.ContextDecorator):
    """A block in which our own waits give up, with DeadlineExceeded, `seconds` after it was entered.

    Cooperative and of this thread only: foreign code inside is not interrupted. `None` means no limit. Raises
    ValueError for 0 or less.
    """

    def __init__(self, seconds: float | None, what: str, scopes: Scopes = _scopes) -> None:
        self._seconds = positive(seconds)
        self._what = what
        self._scopes = scopes

    def __enter__(self) -> fail_after:
        self._scopes.push(self._seconds, self._what)
        return self

    def __exit__(self, *_: object) -> None:
        self._scopes.pop()


class exit_after(contextlib.ContextDecorator):
    """A block that ends the process, stacks first, when it lasts longer than `seconds`.

    For waits that cannot give up by themselves. Inert until the trainer has called `train_begins`. `None` means no
    limit. Raises ValueError for 0 or less.
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
        self._seconds = positive(seconds)
        self._what = what
        self._cause = cause
        self._again = again
        self._file = file
        self._backed = backed
        self._waits: list[Wait | None] = []

    def __enter__(self) -> exit_after:
        if self._seconds == math.inf or not pulse.begun():
            self._waits.append(None)
        else:
            wait = Wait(self._what, self._seconds, time.monotonic(), self._end, True)
            self._waits.append(wait)
            watcher().open(wait, backed=self._backed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        wait = self._waits.pop()
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


def check() -> None:
    """Raise DeadlineExceeded when the earliest cooperative deadline of this thread has passed."""
    _scopes.check()
