"""Reads the end of any log: of any size, in what terminals and PowerShell write, numbered as editors do."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fluxguard.errors import InputError

_END = 4 << 20
"""Bytes that are read from the end: weeks of bars come before, and nothing that explains an end."""
_COUNTED = 64 << 20
"""Bytes up to which the lines before are counted; a longer log is not read whole for a number."""
_MOST = 4000
"""Lines that are looked at; a traceback of many ranks is long."""
_BLOCK = 1 << 20
_SAMPLE = 1 << 16
_LONGEST = 4000
_CONTROL = bytes(set(range(9)) | set(range(14, 27)) | set(range(28, 32)))
_FEW = 0.05
"""Share of control characters that a text may hold, as of bells and torn colours."""
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_TURNS = re.compile(r"[\r\x0b\x0c\x85]")


@dataclass(frozen=True)
class LogLine:
    """A line of a log; what carriage returns divide is several with one number."""

    number: int | None
    """Counted from 1; None where the log is too long to count."""
    text: str


def read(path: Path) -> list[LogLine]:
    """Return the last lines of a log. Raises InputError when it is missing, empty, or no text."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(path, "is no file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            encoding = _encoding(file.read(_SAMPLE))
            width = 2 if encoding.startswith("utf-16") else 1
            start = max(0, size - _END) // width * width
            before = _newlines(path, start, encoding) if start <= _COUNTED else None
            file.seek(start)
            data = file.read(_END + width)
    except FileNotFoundError:
        raise InputError(path, "there is no such file or folder") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from None
    return _lines(path, data, encoding, before, cut=start > 0)


def _lines(path: Path, data: bytes, encoding: str, before: int | None, *, cut: bool) -> list[LogLine]:
    if encoding == "utf-8":
        data = data.replace(b"\0", b"")  # a log that was cut while its writer went on begins with a hole
        sample = data[-_SAMPLE:]
        if len(sample) - len(sample.translate(None, _CONTROL)) > _FEW * len(sample):
            raise InputError(path, "is no text")
    text = data.decode(encoding, "replace").lstrip("\ufeff")
    if not text.strip():
        raise InputError(path, "is empty")
    return list(islice(_numbered(text, before, cut=cut), _MOST))[::-1]


def _numbered(text: str, before: int | None, *, cut: bool) -> Iterator[LogLine]:
    """Yield the lines from the last one back."""
    lines = text.split("\n")
    for index in range(len(lines) - 1, 0 if cut else -1, -1):  # the beginning of the first was not read
        number = None if before is None else before + index + 1
        for part in reversed(_TURNS.split(lines[index])):
            if part.strip():
                yield LogLine(number, part[:_LONGEST])


def _encoding(head: bytes) -> str:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    odd, even = head[1::2], head[::2]
    if odd and odd.count(0) > len(odd) // 2 and even.count(0) < len(even) // 2:
        return "utf-16-le"
    return "utf-8"


def _newlines(path: Path, until: int, encoding: str) -> int:
    """Return how many lines end before a position."""
    newline, found, left = "\n".encode(encoding), 0, until
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(_BLOCK, left))):
            found += block.count(newline)
            left -= len(block)
    return found
