"""Calls into torch that may never return, given up after their limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fluxguard.distributed.meetings import leftover
from fluxguard.errors import DeadlineExceeded

T = TypeVar("T")

_LOOK = 0.2  # so that Ctrl-C is seen meanwhile, on every platform


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.value: list[T] = []

    def run(self) -> None:
        try:
            self.value.append(self._function())
        except BaseException as error:  # noqa: BLE001  (it is raised again where the result is waited for)
            self.error = error
        finally:
            self.done.set()


def within(seconds: float | None, what: str, function: Callable[[], T], more: Callable[[], float] = lambda: 0.0) -> T:
    """Return what a function returns, or raise what it raises; DeadlineExceeded when it takes longer.

    It runs in a thread of its own, which then goes on: nothing can end a call that is stuck in a library. A daemon,
    so the interpreter can end with it. None means no limit. `more` is asked at the limit for how many seconds it may
    go on, 0 for none.
    """
    call = _Call(function)
    thread = threading.Thread(target=call.run, name=f"fluxguard-{what.replace(' ', '-')}", daemon=True)
    thread.start()
    until = None if seconds is None else time.monotonic() + seconds
    while not call.done.wait(_LOOK if until is None else max(0.0, min(_LOOK, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            if (longer := more()) <= 0:
                leftover.leave(thread)  # it may be in the store when the interpreter ends
                raise DeadlineExceeded(what, seconds, "it goes on in a thread of its own")
            until = time.monotonic() + longer
    if call.error is not None:
        raise call.error
    return call.value[0]
