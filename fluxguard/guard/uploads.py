"""Uploads to the hub: after the file is written, so that a network that hangs costs the upload, never the training."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import ParamSpec

from fluxguard import limits
from fluxguard.guard import pulse

P = ParamSpec("P")

logger = logging.getLogger(__name__)


class _Uploads:
    def __init__(self) -> None:
        self.abandoned: list[threading.Thread] = []


_uploads = _Uploads()


def abandoned() -> bool:
    """Return whether an upload that was given up still runs; the end of the process need not wait for it."""
    return any(thread.is_alive() for thread in _uploads.abandoned)


def uploads(function: Callable[P, None]) -> Callable[P, None]:
    """Make a trainer wait for `function` for a limited time; after it the upload is reported and training goes on.

    What it raises is raised. Outside of a trainer nothing is changed.
    """

    @functools.wraps(function)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> None:
        if not pulse.begun():
            function(*args, **kwargs)
            return
        errors: list[BaseException] = []

        def run() -> None:
            try:
                function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  (raised again below, on the thread that asked)
                errors.append(error)

        # No daemon: what `--async_upload` starts in there would become one too, and be cut off at the end.
        thread = threading.Thread(target=run, name="fluxguard-upload", daemon=False)
        limit = limits.current().wait.upload
        with pulse.during("upload"):
            thread.start()
            thread.join(limit)
        if thread.is_alive():
            _uploads.abandoned.append(thread)
            logger.warning(
                "the upload did not end within %g s and is waited for no longer; what it was to upload is saved", limit
            )
        elif errors:
            raise errors[0]

    return bounded
