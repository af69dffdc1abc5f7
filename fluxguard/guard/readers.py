"""Readers: threads of ours that read where no alarm can ring, so that whoever waits for the read can give it up.

No call of C that is stuck in the kernel can be ended from Python on such a thread, so the thread is left behind: it is
a daemon, which the interpreter does not join at its end (one of a ThreadPoolExecutor it would). Each thread that reads
keeps one reader. What was left behind ends as soon as its call returns: PyThreadState_SetAsyncExc raises SystemExit in
it, by which a thread ends without a word.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, pulse
from fluxguard.guard.carried import Carried
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.healed import Heal, tell
from fluxguard.guard.progress import Silence, ThreadMoved, tick
from fluxguard.guard.watcher import awake, lost

Call = Callable[..., Any]

_SOON = 0.04  # the first look at what a reader has read: most reads are over by then, and this late a limit may be


class _Stuck:
    """The outcome of a read that was given up."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class Desk:
    """Where a reader gets one call at a time and leaves its outcome. Two raw locks, because a queue is too slow."""

    __slots__ = ("busy", "call", "done", "ending", "error", "go", "left", "path", "value")

    def __init__(self) -> None:
        self.go = _thread.allocate_lock()
        self.done = _thread.allocate_lock()
        self.go.acquire()
        self.done.acquire()
        self.call: tuple[Carried, Call, tuple[Any, ...]] | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.path = ""
        self.left = False
        self.ending = _thread.allocate_lock()
        self.busy = False
        """Whether the reader is at work, and so certainly alive; it changes to False under `ending` only."""

    def outcome(self) -> Any:
        """Return or raise, once, what the call returned or raised."""
        value, error = self.value, self.error
        self.value = self.error = None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # no cycle: the frames of an error hold files open

    def named(self, path: str, call: Call, args: tuple[Any, ...]) -> Any:
        """Call, on the reader itself, for another file: who waits for the reader waits for that one meanwhile."""
        outer, self.path = self.path, path
        try:
            return call(*args)
        finally:
            self.path = outer

    def dismiss(self) -> None:
        """Let the reader end when it has nothing to do."""
        self.call = None
        with contextlib.suppress(RuntimeError):
            self.go.release()


class NoReader(Exception):
    """Raised when the system, or the end of the interpreter, allows no more threads."""


class _Own(threading.local):
    """What a thread has of its own here."""

    reader: Reader | None = None
    """The reader it keeps."""
    desk: Desk | None = None
    """That of a thread which is a reader itself."""


class _Process:
    hooked = False


_own = _Own()
_process = _Process()
_abandoned: set[threading.Thread] = set()


class Reader:
    """A thread that reads for another one, until that one ends."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.thread = threading.Thread(target=_serve, args=(self.desk,), name="fluxguard-reader", daemon=True)
        self.thread.start()

    def __del__(self) -> None:
        self.desk.dismiss()

    def abandon(self) -> None:
        """Leave it behind with the call it is stuck in."""
        desk = self.desk
        desk.left = True
        _abandoned.add(self.thread)
        raise_in = _raise_in()
        with desk.ending:  # for a thread that has ended, another one may have got its number
            if desk.busy:
                raise_in(self.thread.ident or 0)
        desk.dismiss()


def abandoned() -> int:
    """Return how many readers are stuck in a read that was given up; each keeps its file, and its thread, open."""
    _abandoned.difference_update([thread for thread in list(_abandoned) if not thread.is_alive()])
    return len(_abandoned)


def own_desk() -> Desk | None:
    """Return the desk of this thread, when it is a reader."""
    return _own.desk


def aside(path: str, limit: float, call: Call, args: tuple[Any, ...]) -> Any:
    """Return what `call(*args)` returns, called on a reader, and once more on another when it got no byte for `limit`.

    When that gets none either, a trainer ends, and elsewhere DeadlineExceeded is raised. A `fail_after` of this thread
    is raised when it passes, and an interrupt of the user's at once. Raises NoReader when it could not even begin.
    """
    began = time.monotonic()
    value = _attempt(path, limit, call, args, first=True)
    if not isinstance(value, _Stuck):
        return value
    with contextlib.suppress(NoReader):
        value = _attempt(path, limit, call, args, first=False)
    if not isinstance(value, _Stuck):
        tell_again(path, limit, time.monotonic() - began)
        return value
    path = value.path
    what = f"reading {path}"
    if pulse.begun():
        end_process(Verdict(what=what, cause="file read", limit=limit, waited=time.monotonic() - began, file=path))
    hint = f"no new byte came, twice; the file is left as it is, and so are {abandoned()} threads stuck in reads"
    raise DeadlineExceeded(what, limit, hint, "read")


def tell_again(path: str, limit: float, seconds: float) -> None:
    """Say that a read passed when it was made again."""
    why = f"no new byte came for {limit:g} s; it was opened again, and read"
    tell(Heal(what=f"reading {path}", cause="file read", why=why, seconds=seconds, identical=True, file=path))


def _attempt(path: str, limit: float, call: Call, args: tuple[Any, ...], *, first: bool) -> Any:
    reader = _own.reader or _started()
    _own.reader = None  # a read in the middle of this one, by a finalizer or a handler, gets another
    desk = reader.desk
    desk.path = path
    desk.busy = True
    desk.call = (Carried(), call, args)
    desk.go.release()
    try:
        left, soon = deadlines.remaining(), min(_SOON, tick(limit))
        if not desk.done.acquire(timeout=min(soon, left) if left > 0 else soon) and not _passed(
            reader, limit, first, soon
        ):
            reader.abandon()
            return _Stuck(desk.path)
    except BaseException:
        reader.abandon()
        raise
    _own.reader = reader
    return desk.outcome()


def _passed(reader: Reader, limit: float, first: bool, waited: float) -> bool:
    """Wait on, after so many seconds, and return whether the read has passed before its limit has."""
    desk, every, slept = reader.desk, tick(limit), lost()
    silence = Silence(limit, awake() - waited)
    silence.heard(awake())
    moved = ThreadMoved(reader.thread.native_id or 0)
    while silence.left(awake()) > 0:
        deadlines.check()
        patience = min(every, silence.left(awake()), deadlines.remaining())
        if desk.done.acquire(timeout=max(0.0, patience)):
            silence.heard(awake())
            if first and lost() == slept:
                pulse.completed("read", silence.longest)
            return True
        if moved.moved():
            silence.heard(awake())
    return False


def _started() -> Reader:
    if not _process.hooked and hasattr(os, "register_at_fork"):
        _process.hooked = True
        os.register_at_fork(after_in_child=_forget)
    try:
        return Reader()
    except RuntimeError as error:
        raise NoReader(str(error)) from None


def _serve(desk: Desk) -> None:
    _own.desk = desk
    while True:
        desk.go.acquire()
        job, desk.call = desk.call, None
        if job is None:
            return
        _serve_once(desk, *job)
        if desk.left:
            return
        desk.done.release()


def _serve_once(desk: Desk, carried: Carried, call: Call, args: tuple[Any, ...]) -> None:
    try:
        desk.value = carried.run(call, args)
    except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
        desk.error = error
    with desk.ending:
        desk.busy = False


def _raise_in() -> Callable[[int], object]:
    """Return what ends a thread at its next instruction: what it does is done again, and must not be done twice."""
    try:
        import ctypes
    except ImportError:  # a Python that was built without it
        return id
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return lambda ident: raise_in(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))


def _forget() -> None:
    """In a forked child: no reader exists there, and nobody waits for the thread that has forked."""
    _own.reader = None
    _abandoned.clear()
    if _own.desk is not None:
        _own.desk.left = True
        _own.desk = None
