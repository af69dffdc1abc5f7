"""Errors that were survived: shown whole, and so marked that nobody takes them for the cause of a later end."""

from __future__ import annotations

import contextlib
import sys
import traceback

PREFIX = "fluxguard| "
"""Begins each line of a survived error; whoever reads the output for the cause of an end leaves these lines out."""


def show(error: BaseException) -> None:
    """Write `error` with its stack to standard error; not through logging, whose line breaks would hide the marks."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    lines = "".join(f"{PREFIX}{line}\n" for line in text.splitlines())
    # A closed standard error must not make an error of an error that was survived.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"\n{lines}")
        sys.stderr.flush()
