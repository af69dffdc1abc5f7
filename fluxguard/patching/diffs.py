"""A plan as a unified diff, as `git apply` reads it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fluxguard.patching.planning import Plan


def diff(plan: Plan) -> bytes:
    """Return what a plan changes in the originals, byte for byte."""
    return b"".join(line for change in plan.changes for line in _lines(change.path, change.before, change.after))


def _lines(path: str, before: bytes, after: bytes) -> Iterator[bytes]:
    name = path.encode()
    lines = difflib.diff_bytes(
        difflib.unified_diff, _split(before), _split(after), b"a/" + name, b"b/" + name, lineterm=b"\n"
    )
    for line in lines:
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _split(data: bytes) -> list[bytes]:
    *lines, last = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])
