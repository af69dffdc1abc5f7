"""Durations as people say them."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def said(seconds: float) -> str:
    """Return a duration with the two units that matter: `45 s`, `3 min 20 s`, `2 h 5 min`, `1 d 4 h`."""
    whole = max(0, round(seconds))
    for unit, name, below, below_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            more = whole % unit // below
            return f"{whole // unit} {name}" + (f" {more} {below_name}" if more else "")
    return f"{whole} s"
