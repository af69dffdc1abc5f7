"""What a sample of the machine says, in the words that every screen uses. Pure."""

from __future__ import annotations

from fluxguard.supervisor.showing.durations import said
from fluxguard.supervisor.timeline import Point

UNKNOWN = "unknown"
"""For what no sensor tells: not 0, and no sign of health or of a hang."""
STALE = 60.0
"""Seconds after which a sample says nothing about now; the supervisor takes one every 15 s at the latest."""
_GIB = 1 << 30


def readings(point: Point | None, now: float) -> tuple[tuple[str, str], ...]:
    """Return (sensor, reading) of the newest sample; `now` is in seconds since the epoch."""
    if point is None:
        return (("sensors", UNKNOWN),)
    if now - point.at > STALE:
        return (("sensors", f"{UNKNOWN}: the last sample is {said(now - point.at)} old"),)
    percent = UNKNOWN if point.gpu_percent is None else f"{point.gpu_percent:.0f} %"
    watts = UNKNOWN if point.watts is None else f"{point.watts:.0f} W"
    ram = f"machine {size(point.ram_used)}, trainer {size(point.trainer_rss)}, swap {size(point.swap_used)}"
    return (
        ("GPU", f"busy {percent}, memory {size(point.gpu_used)}, power {watts}"),
        ("RAM", ram),
        ("disk", UNKNOWN if point.disk_free is None else f"{size(point.disk_free)} free"),
    )


def size(count: int | None) -> str:
    """Return bytes as people read them."""
    return UNKNOWN if count is None else f"{count / _GIB:.1f} GiB"
