"""What a rank was started with: its program, and its arguments without their values, which may be secrets. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

WORDS = "its words"
"""What the arguments that belong to no option are called."""

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.@/-]*(?==)")
_OF_ONE = re.compile(
    r"rank|node|host|machine|local|device|gpu|cuda|port|addr|url|(^|[-_.])ip($|[-_.])|worker|thread|cpu", re.IGNORECASE
)
"""What an option is called that may well be another one for each rank or machine."""
_SHORT = 12


def name_of(argv: Sequence[str]) -> str:
    """Return what a program is called: its file, and for a package its folder too; empty where nobody knows."""
    path = PurePath(argv[0] if argv else "")
    return "/".join(path.parts[-2:]) if path.name == "__main__.py" else path.name


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return a digest of the values of each option, by name.

    Left out is what may well differ between ranks that belong together: paths, and options whose names speak of a
    rank, a machine, a device or workers.
    """
    found: dict[str, list[str]] = {}
    for option, value in _pairs(argv[1:]):
        if not _OF_ONE.search(option):
            kept = "/" not in value and "\\" not in value
            found.setdefault(option, []).extend([value] if kept else [])
    found = {option: values for option, values in found.items() if values or option != WORDS}
    return {option: hashlib.sha256("\0".join(values).encode()).hexdigest()[:_SHORT] for option, values in found.items()}


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each value with its option; an option without one comes with an empty text."""
    option = WORDS
    for index, word in enumerate(words):
        match = _OPTION.match(word)
        named = match is not None and (match.end() == len(word) or word[match.end()] == "=")
        if match is None or not named or not (word.startswith("-") or "=" in word):
            yield option, word
            continue
        name = match[0].lstrip("-+").replace("-", "_")
        if "=" in word:
            yield name, word[match.end() + 1 :]
            option = WORDS
        else:
            option = name
            following = words[index + 1] if index + 1 < len(words) else "-"
            if following.startswith("-") and not following[1:2].isdigit():
                yield name, ""
