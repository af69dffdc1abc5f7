"""Threads that are still stuck in the store when the interpreter ends.

One whose call returns just then, because the store's host was continued or killed, would take the whole process with
it: Python ends such a thread by unwinding its stack, C++ does not allow that in torch's, and the process is aborted
instead of ending with its own exit code. So the thread is made to stop where C++ gives up.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading

_left: list[threading.Thread] = []


def leave(thread: threading.Thread) -> None:
    """Remember a thread that did not end."""
    _left.append(thread)


def hold() -> None:
    """Let those that are left stop for good when they come back; the last thing this process does of its own.

    Until Python 3.14, which does that itself.
    """
    if not sys.platform.startswith("linux") or not any(thread.is_alive() for thread in _left):
        return
    with contextlib.suppress(OSError, AttributeError):
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
