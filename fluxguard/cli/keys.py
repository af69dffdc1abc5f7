"""Waiting at a terminal for a time or a key, whichever comes first."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_LOOK = 0.05

Wait = Callable[[float], str]
"""Takes seconds; returns the key that was pressed meanwhile, or an empty text."""


@contextlib.contextmanager
def keys() -> Iterator[Wait]:
    """Give single keys for the time of a block, where standard input is a terminal; else only the time passes."""
    if not sys.stdin or not sys.stdin.isatty():
        yield _sleep
    elif sys.platform == "win32":
        yield _windows
    else:
        with _unbuffered():
            yield _posix


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)  # Ctrl-C stays what it is
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _posix(seconds: float) -> str:
    import os
    import select

    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # Not by the buffered reader: what it holds back, select does not see.
    data = os.read(sys.stdin.fileno(), 1) if ready else b""
    if ready and not data:
        _sleep(seconds)  # the terminal is gone, and select says so at once
    return data.decode("ascii", "ignore")


def _windows(seconds: float) -> str:
    import msvcrt

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if msvcrt.kbhit():  # type: ignore[attr-defined,unused-ignore]
            return str(msvcrt.getwch())  # type: ignore[attr-defined,unused-ignore]
        time.sleep(_LOOK)
    return ""
