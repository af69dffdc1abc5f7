"""The command line. `printing` is the only place that prints; `exits` has the exit codes; each verb is in one file."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from fluxguard.cli import (
    doctor,
    explaining,
    harden,
    holding,
    look,
    nodes,
    notify,
    printing,
    reporting,
    resuming,
    train,
    try_out,
    watching,
)  # verbs join `app` when they are imported
from fluxguard.cli.exits import BAD, GOOD, INPUT, OURS
from fluxguard.cli.verbs import app
from fluxguard.errors import FluxguardError, InputError

__all__ = [
    "app",
    "doctor",
    "explaining",
    "harden",
    "holding",
    "look",
    "main",
    "nodes",
    "notify",
    "reporting",
    "resuming",
    "train",
    "try_out",
    "watching",
]


def main() -> None:
    """Run the command line; whatever goes wrong is one line and a code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end anything
    try:
        app()
    except InputError as error:
        code = _said(INPUT, str(error))
    except FluxguardError as error:
        code = _said(BAD, str(error))
    except OSError as error:
        code = _said(*_os_error(error))
    except Exception as error:  # noqa: BLE001 - the last word of the command line: our own failure is said and coded
        code = _said(OURS, f"fluxguard itself failed ({type(error).__name__}: {error}); please report this")
    else:
        code = GOOD
    sys.exit(code)


def _os_error(error: OSError) -> tuple[int, str]:
    if error.errno == errno.ENOSPC:
        return BAD, "the disk is full; free some space and give the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return INPUT, f"{error.filename}: cannot be written ({error.strerror}); nothing was changed"
    return OURS, f"failed ({error})"


def _said(code: int, text: str) -> int:
    printing.error(_masked(text, sys.argv[1:]))
    return code


def _masked(text: str, words: Sequence[str]) -> str:
    """Return a message without the secrets that the command line or the environment holds, which it may quote."""
    from fluxguard.launch import masking  # only a failure needs it

    ours = words[: words.index("--")] if "--" in words else words
    # Addresses among our own words are those of people to tell, of which any part may be a key.
    addresses = {word.partition("=")[2] if word.startswith("-") else word for word in ours if "://" in word}
    return masking.mask(text, masking.secrets_of(words, os.environ) | addresses)
