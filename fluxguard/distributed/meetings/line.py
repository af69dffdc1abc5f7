"""A connection to the ranks' store that one thread alone uses, and whoever asks waits for as long as he likes.

A call of the store whose host is stopped or cut off never returns, not even from one with a timeout: the client says
that it waits no longer, and waits for the answer to that. So it is never called on a thread that must go on. And each
line has its own connection: torch serialises the calls of all threads that share one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from fluxguard.distributed.meetings import leftover

T = TypeVar("T")

LONG = 86_400.0
"""Seconds after which the store itself ends a wait, with lines of its own on standard error; nobody waits so long."""
_CONNECT = 30.0  # a store that was there a moment ago; behind it the thread alone waits


class Store(Protocol):
    """What is used of a torch.distributed store."""

    def set(self, key: str, value: bytes) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> bool: ...


class StoreGone(Exception):
    """Raised when the store answers with an error: its host has ended, or cannot be reached."""


class Reply(Generic[T]):
    """What a line will say."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[tuple[T | None, RuntimeError | None]] = queue.SimpleQueue()

    def say(self, value: T | None, error: RuntimeError | None) -> None:
        """Answer."""
        self._said.put((value, error))

    def within(self, seconds: float) -> T | None:
        """Return what was said, None when nothing was for so many seconds; then it can be asked again.

        Raises StoreGone when the store has said that it cannot.
        """
        try:
            value, error = self._said.get(timeout=min(seconds, threading.TIMEOUT_MAX)) if seconds > 0 else self._now()
        except queue.Empty:
            return None
        if error is not None:
            raise StoreGone(str(error)) from error
        return value

    def _now(self) -> tuple[T | None, RuntimeError | None]:
        return self._said.get_nowait()


_Job = tuple[Callable[[Store], Any], Callable[[Store], object] | None, Reply[Any]]


class Line:
    """One thread with a connection of its own, which does one thing after the other."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Store],
        idle: Callable[[Store], object] | None = None,
        every: float = 0.0,
    ) -> None:
        """At first, and `every` so many seconds, the thread does `idle`, until that fails for the first time."""
        self._connect = connect
        self._idle = idle
        self._every = every
        self._due = 0.0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, job: Callable[[Store], T], after: Callable[[Store], object] | None = None) -> Reply[T]:
        """Let the thread do `job` when it has done what was asked before. Never waits.

        `after` is done when `job` has succeeded and its reply was given: nobody waits for that.
        """
        reply: Reply[T] = Reply()
        self._jobs.put((job, after, reply))
        return reply

    def end(self) -> None:
        """Let the thread end when it has done what it was asked for."""
        self._jobs.put(None)

    def ended(self, within: float) -> bool:
        """Return whether the thread has ended; one that is stuck in the store is left behind, and keeps nobody."""
        self._thread.join(within)
        if self._thread.is_alive():
            leftover.leave(self._thread)
        return not self._thread.is_alive()

    def _run(self) -> None:
        store: Store | None = None
        gone: RuntimeError | None = None
        try:
            store = self._connect()
        except RuntimeError as error:  # torch's own, for a connection that cannot be made
            gone = error
        while True:
            self._rest(store)
            try:
                job = self._jobs.get(timeout=None if self._idle is None else max(0.0, self._due - time.monotonic()))
            except queue.Empty:
                continue
            if job is None:
                return
            self._do(store, gone, *job)

    def _do(
        self,
        store: Store | None,
        gone: RuntimeError | None,
        job: Callable[[Store], Any],
        after: Callable[[Store], object] | None,
        reply: Reply[Any],
    ) -> None:
        if store is None:
            reply.say(None, gone)
            return
        try:
            reply.say(job(store), None)
        except RuntimeError as error:
            reply.say(None, error)
            return
        if after is not None:
            with contextlib.suppress(RuntimeError):  # whoever asks next will hear of it
                after(store)

    def _rest(self, store: Store | None) -> None:
        if self._idle is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        try:
            if store is not None:
                self._idle(store)
        except RuntimeError:  # the store is gone; the next who asks something will hear of it
            self._idle = None


def own_connection(store: Any, session: str) -> Store:
    """Return a new connection to the store behind `store`, with the same part of it; may never return."""
    store = store.clone() if hasattr(store, "clone") else _again(store, session)
    store.set_timeout(timedelta(seconds=LONG))
    return store  # type: ignore[no-any-return]


def _again(store: Any, session: str) -> Any:
    """Connect by hand where torch is too old to do it; all ranks have the same torch, so they meet in the same part."""
    from torch import distributed

    dist: Any = distributed
    below = store
    while hasattr(below, "underlying_store"):
        below = below.underlying_store
    if not hasattr(below, "port"):
        return store  # a file, which is opened for each call
    wait = timedelta(seconds=_CONNECT)
    again = dist.TCPStore(below.host, below.port, is_master=False, wait_for_workers=False, timeout=wait)
    return dist.PrefixStore(f"fluxguard again/{session}", again)
