"""The part of a timeline that a report shows: the last hour before an incident, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fluxguard.rundir import RunDir
from fluxguard.supervisor import timeline

SHOWN = 3600.0
"""Seconds before an incident that its picture shows."""
_MOST = 240


def before(run: RunDir, at: float) -> tuple[Mapping[str, Any], ...]:
    """Return the points of the last hour before a time (seconds since the epoch); what is unknown is left out."""
    return tuple(
        _plain(asdict(point)) for point in thinned([p for p in timeline.read(run) if at - SHOWN <= p.at <= at])
    )


def thinned(points: Sequence[Any], most: int = _MOST) -> list[Any]:
    """Return at most `most` of the points: the first, the last, and evenly between them."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None and value == value  # not a number
    }
