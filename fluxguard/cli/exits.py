"""Exit codes of every verb: 0 good, 1 a bad answer, 2 your input, 3 our own failure."""

from __future__ import annotations

from typing import NoReturn

import typer

GOOD, BAD, INPUT, OURS = 0, 1, 2, 3


def end(code: int) -> NoReturn:
    """End a verb with a code."""
    raise typer.Exit(code)
