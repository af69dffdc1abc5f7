"""Calls into torch that may never return, given up after their limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

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


def within(seconds: float | None, what: str, function: Callable[[], T]) -> T:
    """Return what a function returns, or raise what it raises; DeadlineExceeded when it takes longer.

    It runs in a thread of its own, which then goes on: nothing can end a call that is stuck in a library. A daemon,
    so the interpreter can end with it. None means no limit.
    """
    call = _Call(function)
    threading.Thread(target=call.run, name=f"fluxguard-{what.replace(' ', '-')}", daemon=True).start()
    until = None if seconds is None else time.monotonic() + seconds
    while not call.done.wait(_LOOK if until is None else max(0.0, min(_LOOK, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            raise DeadlineExceeded(what, seconds, "it goes on in a thread of its own")
    if call.error is not None:
        raise call.error
    return call.value[0]
