"""The picture of a timeline as numbers: bands of phases and lines of figures over one axis of time. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Points = Sequence[Mapping[str, Any]]

WIDTH, HEIGHT = 1000, 100
_GIB = 1 << 30
_BEYOND = 1e15
"""No time of a calendar, and more bytes than a machine has; NaN is not below it either."""
_ROOM = 0.02
"""Of the width, right of the incident, so that its mark is seen."""
_KINDS = {
    "start": ("load", "tokenizers", "accelerator", "cast", "prepare", "resume", "trackers", "hash"),
    "caches": ("text cache", "latent cache"),
    "training": ("first step", "step"),
    "sampling": ("sampling", "validation", "on main"),
    "saving": ("saving", "upload", "ending"),
}
_KIND_OF = {phase: kind for kind, phases in _KINDS.items() for phase in phases}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A figure of the points that gets a panel."""

    field: str
    title: str
    unit: str = ""
    scale: float = 1.0
    """What a value is divided by."""
    from_zero: bool = True
    to: float | None = None
    """The top of its axis; None for the largest value."""
    digits: int = 0


MEASURES = (
    Measure(field="step", title="step", from_zero=False),
    Measure(field="loss", title="loss", from_zero=False, digits=4),
    Measure(field="gpu_percent", title="GPU busy", unit="%", to=100.0),
    Measure(field="watts", title="GPU power", unit="W"),
    Measure(field="gpu_used", title="GPU memory", unit="GiB", scale=_GIB, digits=1),
    Measure(field="ram_used", title="RAM of the machine", unit="GiB", scale=_GIB, digits=1),
    Measure(field="trainer_rss", title="RAM of the trainer", unit="GiB", scale=_GIB, digits=1),
    Measure(field="swap_used", title="swap", unit="GiB", scale=_GIB, digits=1),
    Measure(field="disk_free", title="free disk", unit="GiB", scale=_GIB, digits=1),
)


@dataclass(frozen=True, kw_only=True)
class Band:
    """A time in one phase."""

    x: float
    width: float
    phase: str
    kind: str
    """start, caches, training, sampling, saving or other: one colour each."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One figure over time."""

    field: str
    title: str
    path: str
    """Of an SVG path; empty when nothing is known."""
    said: str
    """Its range and its last value, in words."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything that is drawn."""

    bands: tuple[Band, ...]
    panels: tuple[Panel, ...]
    unknown: tuple[str, ...]
    """Titles of the figures of which nothing is known."""
    legend: tuple[tuple[str, str], ...]
    """(kind, phases and how long) of the bands, in words."""
    mark: float
    """Where the incident is."""
    starts: tuple[float, ...]
    """Where further attempts begin."""
    begins: str
    """The time of day at the left edge."""
    ends: str
    """The time of day of the incident."""
    words: str
    """What is to be seen, for who does not see it."""


def drawn(points: Points, at: float) -> Chart | None:
    """Return the picture of points (as `Incident.timeline`) before an incident at `at`; None without any."""
    points = sorted((p for p in points if _number(p.get("at")) is not None), key=lambda p: float(p["at"]))
    if len(points) < 2:
        return None
    first, last = float(points[0]["at"]), max(at, float(points[-1]["at"]))
    span = max(last - first, 1e-3) / (1 - _ROOM)

    def x(when: float) -> float:
        return round((when - first) / span * WIDTH, 2)

    bands = tuple(_bands(points, last, x))
    panels = [_panel(measure, points, x) for measure in MEASURES]
    legend = _legend(bands)
    return Chart(
        bands=bands,
        panels=tuple(panel for panel in panels if panel.path),
        unknown=tuple(panel.title for panel in panels if not panel.path),
        legend=legend,
        mark=x(at),
        starts=tuple(x(float(b["at"])) for a, b in pairwise(points) if a.get("attempt") != b.get("attempt")),
        begins=_clock(first),
        ends=_clock(at),
        words=f"From {_clock(first)} to the incident at {_clock(at)}: " + "; ".join(words for _, words in legend) + ".",
    )


def _bands(points: Points, last: float, x: Any) -> Iterator[Band]:
    begun = points[0]
    for before, point in pairwise([*points, None]):
        assert before is not None
        if point is not None and _life(point) == _life(begun):
            continue
        # Nobody knows what was between two attempts: nothing may have run for hours.
        goes_on = point is not None and point.get("attempt") == begun.get("attempt")
        end = last if point is None else float(point["at"] if goes_on else before["at"])
        start = float(begun["at"])
        phase = str(begun.get("phase") or "unknown")
        kind = _KIND_OF.get(phase, "other")
        yield Band(x=x(start), width=round(x(end) - x(start), 2), phase=phase, kind=kind, seconds=end - start)
        begun = point if point is not None else begun


def _life(point: Mapping[str, Any]) -> tuple[object, object]:
    return point.get("attempt"), point.get("phase")


def _legend(bands: Sequence[Band]) -> tuple[tuple[str, str], ...]:
    times: dict[str, dict[str, float]] = {}
    for band in bands:
        phases = times.setdefault(band.kind, {})
        phases[band.phase] = phases.get(band.phase, 0.0) + band.seconds
    return tuple(
        (kind, ", ".join(f"{phase} {brief(seconds)}" for phase, seconds in phases.items()))
        for kind, phases in times.items()
    )


def _panel(measure: Measure, points: Points, x: Any) -> Panel:
    values = [_number(point.get(measure.field)) for point in points]
    known = [value / measure.scale for value in values if value is not None]
    if not known:
        return Panel(field=measure.field, title=measure.title, path="", said="unknown")
    low = 0.0 if measure.from_zero else min(known)
    high = max(measure.to or 0.0, max(known))
    room = (high - low) or abs(high) or 1.0

    def y(value: float) -> float:
        return round(HEIGHT * (0.95 - 0.9 * (value / measure.scale - low) / room), 2)

    path, drawing, before = [], False, None
    for point, value in zip(points, values, strict=True):
        if value is None or point.get("attempt") != before:
            drawing = False
        if value is not None:
            path.append(f"{'L' if drawing else 'M'}{x(float(point['at']))} {y(value)}h0")
            drawing = True
        before = point.get("attempt")
    return Panel(field=measure.field, title=measure.title, path="".join(path), said=_said(measure, known))


def _said(measure: Measure, known: Sequence[float]) -> str:
    unit = f" {measure.unit}" if measure.unit else ""
    low, high, last = (f"{value:.{measure.digits}f}" for value in (min(known), max(known), known[-1]))
    return f"{last}{unit} at last, {low} to {high}" if low != high else f"{last}{unit} all the time"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _BEYOND:
        return None
    return float(value)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def brief(seconds: float) -> str:
    """Return a duration for people, in one or two units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
