"""What has become of processes that are known by their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from fluxguard.heartbeat import Beat
from fluxguard.supervisor.sensing.identity import UNSEEN

_SAME_START = 2.0
"""Seconds: a heartbeat tells the start of its process by the clock on the wall."""


def of(beats: Iterable[Beat]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the process numbers of those that are gone, and of those that somebody has stopped."""
    seen = {beat.pid: _state(beat) for beat in beats}
    return (
        frozenset(pid for pid, state in seen.items() if state in (None, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)),
        frozenset(pid for pid, state in seen.items() if state in (psutil.STATUS_STOPPED, "tracing-stop")),
    )


def _state(beat: Beat) -> str | None:
    """Return the state of the process that writes a heartbeat; None when it is gone, and another has its number."""
    try:
        process = psutil.Process(beat.pid)
        again = beat.started and process.create_time() > beat.started + _SAME_START
        return None if again else str(process.status())
    except psutil.NoSuchProcess:
        return None
    except UNSEEN:
        return "unknown"
