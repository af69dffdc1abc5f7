"""Words of causes: what of an error tells its place, and whole sentences."""

from __future__ import annotations

import re

_CHANGING = re.compile(
    r"\bpid(?:\(s\))?:? ?[\d, ]+|\(pid[^)]*\)|0x[0-9a-fA-F]+|[\d.]+ (?:[KMGT]i?B|bytes|milliseconds)\b"
)


def place(said: str) -> str:
    """Return what an error says without the numbers that differ each time."""
    return _CHANGING.sub("#", said)


def ended(text: str) -> str:
    """Return a sentence with its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def sentence(text: str) -> str:
    """Return words as a sentence begins."""
    return text[:1].upper() + text[1:]


def moveless(since: float, limit: float | None) -> str:
    """Say for how long nothing moved, and how long that may be, both in seconds."""
    return f"nothing moved for {since:.0f} s" + (f" (limit {limit:g} s)" if limit is not None else "")
