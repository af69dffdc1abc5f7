"""The alarm: the only thing that gets the main thread out of a system call, and it does so by raising.

A call that a signal interrupts is made again, unless the handler of the signal raises (PEP 475). The watcher sends the
signal when a limit has passed, to the main thread (pthread_kill(3)), so that nobody is disturbed before. It is SIGURG:
ignored by default, and used by nobody but sockets with urgent data, so what rings costs nobody anything (the Go
runtime interrupts its threads with it for that reason). SIGALRM and the one real-time timer of the process
(setitimer(2)) belong to whoever uses them. Our handler stays where it is; a foreign one, set before or after, is
called by ours when it was not us who rang.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from types import CodeType, FrameType
from typing import Any

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, pulse
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.progress import SHORT, TICK, Silence, ThreadMoved, tick
from fluxguard.guard.watcher import Wait, awake, lost, watcher

logger = logging.getLogger(__name__)

_SIGNAL: Any = getattr(signal, "SIGURG", None) if hasattr(signal, "pthread_kill") else None
_UNANSWERED = 5.0  # a thread that runs answers within microseconds; one in a call of C that is about to end may not

_handler_of: Any = getattr(getattr(signal, "_signal", signal), "getsignal", None)
"""As `signal.getsignal`, which takes microseconds to make an enum of what it finds."""


class Watched:
    """A read that the watcher looks at."""

    counted: ThreadMoved | None = None
    """What it has read; not asked for before the first look: a read that is over by then pays nothing for it."""

    def __init__(self, path: str, limit: float) -> None:
        self.path = path
        self.limit = limit
        self.began = awake()

    def completed(self) -> None:
        """Note that the read has passed: what it had to wait for is no fault the next time."""
        if self.counted is not None and lost() == self._slept:
            self._silence.heard(awake())
            pulse.completed("read", self._silence.longest)

    def look(self, now: float) -> float:
        """Take note of what came; return the seconds until the next look."""
        if self.counted is None:
            self._slept = lost()
            self._silence = Silence(self.limit, self.began)
            self.counted = ThreadMoved(self._thread())
            self._heard(now)
        elif self.counted.moved():
            self._heard(now)
        left = self._left(now)
        return min(left, tick(self.limit)) if left > 0 else self._passed(now)

    def _thread(self) -> int:
        raise NotImplementedError

    def _heard(self, now: float) -> None:
        self._silence.heard(now)

    def _left(self, now: float) -> float:
        return self._silence.left(now)

    def _passed(self, now: float) -> float:
        self._end()
        return tick(self.limit)

    def _end(self, *_: object) -> None:
        what, waited = f"reading {self.path}", awake() - self._silence.last
        end_process(Verdict(what=what, cause="file read", limit=self.limit, waited=waited, file=self.path))


class Fatal(Watched):
    """A read in a trainer, on a thread that nothing can interrupt: no new byte for its limit ends the process."""

    _wait: Wait | None = None
    _shown: Wait | None = None

    def open(self) -> None:
        """Begin."""
        self._native = threading.get_native_id()
        self._wait = wait = Wait("file read", tick(self.limit), time.monotonic(), lambda _: self.look(awake()), False)
        watcher().open(wait)

    def close(self) -> None:
        """End, whether it has begun or not."""
        waits = self._wait, self._shown
        self._wait = self._shown = None
        for wait in waits:
            if wait is not None:
                watcher().close(wait)

    def _thread(self) -> int:
        return self._native

    def _heard(self, now: float) -> None:
        super()._heard(now)
        if self._shown is None:
            self._shown = shown = Wait("file read", self.limit, time.monotonic(), self._end, True)
            watcher().open(shown)
            if self._wait is None:  # it was closed meanwhile, and may not have seen this
                watcher().close(shown)
        else:
            self._shown.at = time.monotonic() + self.limit


class Alarm(Watched):
    """A read on the main thread that is left by DeadlineExceeded when it got no new byte for `limit` seconds.

    Alarms nest. While an inner one is open that is no more patient, an outer one leaves it to ring. A `fail_after`
    whose deadline passes in the middle is raised as well. `last` says that nobody makes the read again. A thread that
    does not answer, because it is in a call that no signal interrupts, is the end of a trainer.
    """

    due = False
    last_rung = 0
    _raised = 0
    _rung: float | None = None

    def __init__(self, path: str, limit: float, *, last: bool = False) -> None:
        self.path = path
        self.limit = limit
        self.began = awake()
        self._last = last

    def open(self) -> None:
        """Begin."""
        _open.append(self)
        if self.limit < _poll.shortest:
            _poll.hurry(self.limit)

    def close(self) -> None:
        """End, whether it has begun or not. From here on a bell finds nobody to wake."""
        if self in _open:
            _open.remove(self)
            if _open:
                _open[-1].inner_ended()

    def inner_ended(self) -> None:
        """Count the end of a read inside this one as a sign of life."""
        if self.counted is not None:
            self._silence.last = awake()

    def raised(self, error: BaseException) -> bool:
        """Return whether it, or one inside it that nobody makes again, has rung with `error`."""
        return self._raised == id(error)

    def answer(self) -> None:
        """Raise what has rung, on the main thread; nothing when it no longer holds.

        It stays open until its block is left, and rings again each tick: who reads may have caught the error as one
        of the many kinds of OSError.
        """
        self.due = False
        try:
            deadlines.check()
        except DeadlineExceeded as earlier:
            self.last_rung = id(earlier)
            raise
        if self._silence.left(awake()) > 0:
            return
        again = ", also when it was opened again" if self._last else ""
        hint = f"no new byte came{again}; the file is left as it is"
        error = DeadlineExceeded(f"reading {self.path}", self.limit, hint, "read")
        outer = [] if self._last else _open[: _open.index(self)]
        for alarm in (*outer, self):
            alarm._raised = alarm.last_rung = id(error)
        raise error

    def _thread(self) -> int:
        return _bell.native

    def _left(self, now: float) -> float:
        left = self._silence.left(now)
        if left <= 0:
            for inner in _open[-1:]:
                if inner is not self and inner.limit <= self.limit:
                    left = tick(self.limit)
        scopes = list(_bell.scopes)
        return min(left, min(scopes)[0] - now) if scopes else left

    def _passed(self, now: float) -> float:
        self.due = True
        if self._rung is None:
            self._rung = now
        elif now - self._rung > _UNANSWERED and self._silence.left(now) <= 0:
            self._deaf()
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(_bell.main, _SIGNAL)
        return tick(self.limit)

    def _deaf(self) -> None:
        if pulse.begun():
            self._end()
        self._rung = math.inf  # said once
        text = "reading %s got no new byte for %g s, in a call that nothing can interrupt"
        # On a thread of its own: who is stuck may hold the lock of the log.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=logger.warning, args=(text, self.path, self.limit), daemon=True).start()


_open: list[Alarm] = []


def rang(error: BaseException) -> bool:
    """Return whether `error` is what an open alarm has raised."""
    return any(alarm.last_rung == id(error) for alarm in _open)


leaving: set[CodeType] = {Alarm.close.__code__}
"""Functions that end a read: it is over there, and an error would leave its alarm open behind it."""


class _Poll:
    """One wait that never ends and looks at the alarms that are open: to open one for each read is too dear."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child nobody watches what its parent has opened."""
        self._wait: Wait | None = None
        self.shortest = math.inf
        """A limit below this one needs looks that are closer together than they are."""

    def hurry(self, limit: float) -> None:
        """Look so often that a read with this limit is looked at a few times in it."""
        if self._wait is not None:
            watcher().close(self._wait)
        self._pace(limit)
        self._wait = Wait("file read", tick(limit), time.monotonic(), self.looks, False)
        watcher().open(self._wait)

    def looks(self, _: Wait | None) -> float:
        """Look at all of them."""
        now = awake()
        alarms = list(_open)
        self._pace(min((alarm.limit for alarm in alarms), default=math.inf))
        return min((alarm.look(now) for alarm in alarms), default=TICK)

    def _pace(self, limit: float) -> None:
        self.shortest = min(limit, SHORT)


_poll = _Poll()


class _Bell:
    """Our handler, who was there before it, and the thread that it wakes."""

    def __init__(self) -> None:
        self.before: Any = None
        self.hooked = False
        self.main = self.native = 0
        self.scopes: list[Any] = []
        self._passing = False

    def ring(self, number: int, frame: FrameType | None) -> None:
        """Raise for the outermost alarm that is due; else it was somebody else who rang."""
        due = [alarm for alarm in _open if alarm.due]
        if due and frame is not None and frame.f_code in leaving:
            return
        for alarm in due:
            alarm.answer()
        if not due and callable(self.before) and not self._passing:  # it may pass it on to us, who were before it
            self._passing = True
            try:
                self.before(number, frame)
            finally:
                self._passing = False

    def listen(self) -> bool:
        """Be set, on the main thread, also over one that was set since; setting it for each read takes microseconds."""
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            return False
        before = _handler_of(_SIGNAL)
        if before is None:  # a handler that C has set, and Python could not set again
            return False
        if before is not _ring:
            try:
                signal.signal(_SIGNAL, _ring)
            except ValueError:  # not the main interpreter
                return False
            self.before = before
        self.main, self.native = threading.get_ident(), threading.get_native_id()
        self.scopes = deadlines.open_scopes()  # of this thread; the watcher's own would be another one
        if not self.hooked and hasattr(os, "register_at_fork"):
            self.hooked = True
            os.register_at_fork(after_in_child=_forget)
        return True


_bell = _Bell()
_ring = _bell.ring


def possible() -> bool:
    """Return whether an alarm can ring here: on the main thread, where the platform has one and Python owns it."""
    if _SIGNAL is None or threading.get_ident() != _bell.main or _handler_of(_SIGNAL) is not _ring:
        return _bell.listen()
    return True


def _forget() -> None:
    """In a forked child: another thread may be its main one, and nobody watches what was open."""
    _bell.main = 0
    _open.clear()
    _poll.forget()
