"""What the guard put right without ending the process: one warning line, and one line in a file of the run."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import asdict, dataclass

from fluxguard.guard import pulse
from fluxguard.rundir import VERSION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Heal:
    """One thing that went wrong and was put right in place."""

    what: str
    """The wait in plain words, such as "a batch from the loader"."""
    cause: str
    """As in a verdict: "loader worker" or "file read"."""
    why: str
    """What was wrong, such as "worker process 4711 was stuck"."""
    seconds: float
    """How long it took, from the beginning of the wait until it was right again."""
    identical: bool
    """Whether the training goes on bit for bit as it would have."""
    doubt: str = ""
    """Why it may not, in plain words; empty when it does."""
    file: str | None = None
    """The file it was about."""
    workers: tuple[int, ...] = ()
    """The worker processes it was about."""


def tell(heal: Heal) -> None:
    """Say that something was put right. Never raises: a disk that is full must not undo it."""
    goes_on = "bit for bit as it would have" if heal.identical else f"though maybe not identically: {heal.doubt}"
    logger.warning(
        "%s: %s; put right after %.1f s without a restart, the training goes on %s",
        f"{heal.what} ({heal.file})" if heal.file and heal.file not in heal.what else heal.what,
        heal.why,
        heal.seconds,
        goes_on,
    )
    run = pulse.run_dir()
    if run is None or not pulse.begun():
        return
    heart = pulse.heart()
    words = {
        "version": VERSION,
        "attempt": pulse.attempt(),
        "rank": pulse.rank(),
        "step": heart.step if heart else 0,
        "time": time.time(),
        **asdict(heal),
        "seconds": round(heal.seconds, 3),
    }
    with contextlib.suppress(OSError):
        fd = os.open(run.healed(pulse.rank()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, json.dumps(words).encode() + b"\n")
        finally:
            os.close(fd)
