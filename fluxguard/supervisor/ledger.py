"""What happened in a run, in order: append-only, one JSON object a line, each with its time and its reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.rundir import VERSION


@dataclass(frozen=True)
class Event:
    """One line of the ledger."""

    kind: str
    """job, plan, attempt, spawned, adopted, ended, incident, decision, finished, stopped, fresh."""
    at: float
    """Seconds since the epoch."""
    values: Mapping[str, Any] = field(default_factory=dict)


Subscriber = Callable[[Event], None]


class Ledger:
    """Appends events to a file and tells subscribers; the file is the truth, the list a copy of it."""

    def __init__(self, path: Path, clock: Clock, subscribers: tuple[Subscriber, ...] = ()) -> None:
        self._path = path
        self._clock = clock
        self._subscribers = subscribers
        self.events: list[Event] = read(path)

    def add(self, kind: str, **values: Any) -> Event:
        """Append one event, durable before this returns. Raises OSError on a full disk."""
        event = Event(kind, self._clock.wall(), values)
        line = json.dumps({"version": VERSION, "event": kind, "at": event.at, **values}, ensure_ascii=False)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A torn line of a supervisor that died in the middle must not swallow this one.
            torn = os.fstat(fd).st_size > 0 and not _ends_whole(self._path)
            os.write(fd, (("\n" if torn else "") + line + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        self.events.append(event)
        for subscriber in self._subscribers:
            subscriber(event)
        return event

    def last(self, kind: str) -> Event | None:
        """Return the newest event of this kind."""
        return next((event for event in reversed(self.events) if event.kind == kind), None)


def read(path: Path) -> list[Event]:
    """Return the events in a ledger; lines that a crash has torn are passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            values = json.loads(line)
            events.append(Event(values.pop("event"), float(values.pop("at")), values))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        values.pop("version", None)
    return events


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
