"""Threads that are still stuck in the store when the interpreter ends.

One whose call returns just then, because the store's host was continued or killed, would take the whole process with
it: Python ends such a thread by unwinding its stack, C++ does not allow that in torch's, and the process is aborted
instead of ending with its own exit code. So the thread is made to stop where it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from multiprocessing import util

_left: list[threading.Thread] = []
_AT_THE_END = 999  # after the halls are closed, which may leave more


def leave(thread: threading.Thread) -> None:
    """Remember a thread that did not end."""
    if not _left:
        util.Finalize(None, hold, exitpriority=_AT_THE_END)
    _left.append(thread)


def hold() -> None:
    """Stop those that are left for good, and no other thread; the last thing this process does of its own.

    Until Python 3.14, which does that itself. By a signal that nobody else uses, whose handler is C's `pause`.
    """
    held = [thread.ident for thread in _left if thread.is_alive() and thread.ident]
    if not held or not sys.platform.startswith("linux"):
        return
    number = signal.SIGRTMAX - 1
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        libc.signal(number, ctypes.cast(libc.pause, ctypes.c_void_p))
        for ident in held:
            signal.pthread_kill(ident, number)
