"""Phases, steps, loss, GPU and memory of a run over time, for pictures: one sample a line of `timeline.jsonl`."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from fluxguard.rundir import VERSION, RunDir, write_whole
from fluxguard.supervisor.detecting.observation import Observation
from fluxguard.supervisor.detecting.signs import cards_of
from fluxguard.supervisor.sensing.gpu import Card

_GIB = 1 << 30
_END = 1 << 12
"""Bytes that hold the newest sample for sure."""
LARGEST = 4 << 20
"""Bytes; a file that outgrows them loses every second sample, so that the whole run stays in it, ever more coarsely."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One sample; None is unknown."""

    at: float
    """Seconds since the epoch."""
    attempt: int
    """Which attempt, counted from 1."""
    phase: str
    step: int
    """True steps."""
    loss: float | None = None
    gpu_percent: float | None = None
    """The mean of the cards that the training uses; of all cards where that is not known."""
    gpu_used: int | None = None
    """Bytes, over the same cards together."""
    watts: float | None = None
    """The same."""
    ram_used: int | None = None
    """Bytes, by everything on the machine."""
    trainer_rss: int | None = None
    """Bytes that the trainer's processes hold."""
    swap_used: int | None = None
    disk_free: int | None = None
    """Bytes in the output folder."""


def point(seen: Observation, *, at: float, attempt: int, step: int) -> Point:
    """Return the sample of a look that sampled."""
    cards, host = cards_of(seen) or seen.gpus or (), seen.host
    used = [host.total - host.available] if host and host.total is not None and host.available is not None else [None]
    return Point(
        at=at,
        attempt=attempt,
        phase=seen.phase,
        step=step,
        loss=_finite(seen.beat.loss if seen.beat else seen.shown.loss),
        gpu_percent=_mean([card.utilisation for card in cards]),
        gpu_used=_sum(cards, "used"),
        watts=_sum(cards, "watts"),
        ram_used=used[0],
        trainer_rss=seen.usage.rss if seen.usage else None,
        swap_used=host.swap_used if host else None,
        disk_free=seen.disk_free,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(cards: Iterable[Card], name: str) -> Any:
    known = [value for card in cards if (value := getattr(card, name)) is not None]
    return sum(known) if known else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def append(run: RunDir, one: Point, *, largest: int = LARGEST) -> None:
    """Append a sample. A disk that does not take it costs the picture, never the run."""
    values = {name: value for name, value in asdict(one).items() if value is not None}
    line = json.dumps({"version": VERSION, **values}).encode() + b"\n"
    with contextlib.suppress(OSError):
        fd = os.open(run.timeline, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size > largest:
            _thin(run)


def _thin(run: RunDir) -> None:
    """Leave out every second sample."""
    lines = run.timeline.read_bytes().splitlines(keepends=True)
    write_whole(run.timeline, b"".join(lines[::2]))


def read(run: RunDir) -> list[Point]:
    """Return the samples of a run in order; lines that are torn, foreign or of another version are passed over."""
    try:
        return parsed(run.timeline.read_bytes())
    except OSError:
        return []


def parsed(data: bytes) -> list[Point]:
    """Return the samples in some lines of a timeline."""
    return [one for line in data.splitlines() if (one := _point(line)) is not None]


def last(run: RunDir) -> Point | None:
    """Return the newest sample of a run, or None; what it costs does not depend on how many there are."""
    try:
        with run.timeline.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
            lines = file.read().splitlines()
    except OSError:
        return None
    return next((one for line in reversed(lines) if (one := _point(line)) is not None), None)


def words(one: Point) -> str:
    """Return what a sample shows of the machine, what is unknown named as such."""
    gpu = "GPU unknown"
    if one.gpu_percent is not None or one.gpu_used is not None:
        watts = "" if one.watts is None else f" at {one.watts:.0f} W"
        busy = "" if one.gpu_percent is None else f" {one.gpu_percent:.0f} % busy{watts},"
        gpu = f"GPU{busy} {_gib(one.gpu_used)} in use"
    trainer = "" if one.trainer_rss is None else f" ({_gib(one.trainer_rss)} by the trainer)"
    swap = f", swap {_gib(one.swap_used)} in use" if one.swap_used else ""
    return f"{gpu}; memory {_gib(one.ram_used)} in use{trainer}{swap}; disk {_gib(one.disk_free)} free"


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / _GIB:.1f} GiB"


_NAMES = frozenset(field.name for field in fields(Point))


def _point(line: bytes) -> Point | None:
    try:
        values = json.loads(line)
        if values.pop("version") != VERSION:
            return None
        one = Point(**{name: value for name, value in values.items() if name in _NAMES})
        numbers = [value for name, value in vars(one).items() if name != "phase" and value is not None]
        whole = all(isinstance(value, (int, float)) for value in numbers)
        return one if whole and isinstance(one.phase, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
