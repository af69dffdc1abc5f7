"""Other programs that are asked for an answer, which may never come."""

from __future__ import annotations

import subprocess
from typing import Any

from fluxguard import limits


def check_output(*args: Any, **kwargs: Any) -> Any:
    """Return what a program writes, as `subprocess.check_output` does, within the limit of a command.

    Raises subprocess.TimeoutExpired when it does not end in time, after killing it, and CalledProcessError and OSError
    as ever. A `timeout` of the caller's own is kept.
    """
    kwargs.setdefault("timeout", limits.current().wait.command)
    return subprocess.check_output(*args, **kwargs)
