"""Text from outside, made harmless for where it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP = re.compile(r"(\\(?=[<\[\]`*|\\])|[<\[\]`*|])")
_FENCE = re.compile(r"`{3,}")


def plain(text: object) -> str:
    """Return text without what steers a terminal or turns letters around; line breaks and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n")))


def in_line(text: object) -> str:
    """Return text for one line of Markdown, in which nothing of it is markup or HTML."""
    return _MARKUP.sub(r"\\\1", " ".join(plain(text).split()))


def said(text: object) -> str:
    """Return a sentence of ours for Markdown: `code` in it stays code; HTML, links and tables in it are none."""
    words = " ".join(plain(text).split())
    parts = words.split("`")
    if len(parts) % 2 == 0 or "\\`" in words or any("<" in part for part in parts[1::2]):
        return in_line(words)
    return "`".join(part if at % 2 else re.sub(r"([<\[\]|])", r"\\\1", part) for at, part in enumerate(parts))


def block(lines: Sequence[object]) -> list[str]:
    """Return lines as a block of code in Markdown that none of them can end."""
    shown = [line for one in lines for line in plain(one).split("\n")]
    longest = max((len(found) for line in shown for found in _FENCE.findall(line)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}text", *shown, fence]
