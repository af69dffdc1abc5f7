"""What happened in a run, in order: append-only, one JSON object a line, each with its time and its reason."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.rundir import VERSION


@dataclass(frozen=True)
class Event:
    """One line of the ledger."""

    kind: str
    """job, plan, attempt, spawned, adopted, healed, trouble, ended, distrusted, incident, decision, would, finished or
    stopped."""
    at: float
    """Seconds since the epoch."""
    values: Mapping[str, Any] = field(default_factory=dict)


Subscriber = Callable[[Event], None]

_log = logging.getLogger(__name__)

_RESERVE = 1 << 16
"""Bytes kept beside the ledger."""

_NEEDED = {
    "job": frozenset({"hardened", "weights"}),
    "plan": frozenset({"planned_steps", "batches_per_epoch", "accumulation"}),
    "attempt": frozenset({"attempt", "number", "start_step", "log_from"}),
    "spawned": frozenset({"attempt", "keeper"}),
    "healed": frozenset({"attempt", "rank", "number", "step", "what", "why", "seconds", "identical"}),
    "ended": frozenset({"attempt", "step"}),
    "incident": frozenset({"number", "cause", "step", "report"}),
    "finished": frozenset({"attempt", "reason", "weights", "applied_steps"}),
    "stopped": frozenset({"reason", "applied_steps"}),
}


class Ledger:
    """Appends events to a file and tells subscribers.

    A full disk or a dead terminal must not end the supervision of a training that lives: an event that cannot be
    written stays in memory, and a subscriber that fails is told nothing more.
    """

    def __init__(self, path: Path, clock: Clock, subscribers: tuple[Subscriber, ...] = ()) -> None:
        self._path = path
        self._clock = clock
        self._subscribers = list(subscribers)
        self.events: list[Event] = read(path)
        self._reserve = path.with_suffix(".reserve")
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(_RESERVE))

    def add(self, kind: str, /, **values: Any) -> Event:
        """Append one event, durable before this returns unless the disk does not let it."""
        event = Event(kind, self._clock.wall(), values)
        line = json.dumps({"version": VERSION, "event": kind, "at": event.at, **values}) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:
            self.give_way()
            try:
                self._append(line.encode())
            except OSError:
                _log.warning("the ledger cannot be written (%s): %s is known to this process only", error, kind)
        self.events.append(event)
        self._tell(event)
        return event

    def give_way(self) -> None:
        """Give the reserve back to a full disk, so that how it filled can still be written down."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A torn line of a supervisor that died in the middle must not swallow this one.
            size = os.lseek(fd, 0, os.SEEK_END)
            if size and _byte_at(fd, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _tell(self, event: Event) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001 - a terminal that is gone, or any other listener, must not end a supervision
                self._subscribers.remove(subscriber)
                _log.warning("a listener failed and is told nothing more")


def newest(events: Sequence[Event], *kinds: str) -> Event | None:
    """Return the newest event of these kinds, or None."""
    return next((event for event in reversed(events) if event.kind in kinds), None)


def read(path: Path) -> list[Event]:
    """Return the events in a ledger; lines that are torn, foreign or of another version are passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [event for line in lines if (event := _event(line)) is not None]


def unreadable(path: Path) -> int:
    """Return how many lines of a ledger are passed over; a last one that its writer died over is none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return 0
    whole = [line for line in lines if line.strip() and line.endswith(b"\n")]
    return sum(_event(line) is None for line in whole)


def _event(line: bytes) -> Event | None:
    try:
        values = json.loads(line)
        kind, at = values.pop("event"), float(values.pop("at"))
        if values.pop("version") != VERSION or not _NEEDED.get(kind, frozenset()) <= values.keys():
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Event(kind, at, values)


def _byte_at(fd: int, position: int) -> bytes:
    os.lseek(fd, position, os.SEEK_SET)
    return os.read(fd, 1)
