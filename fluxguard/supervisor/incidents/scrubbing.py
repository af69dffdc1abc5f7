"""Takes secrets out of what the trainer's side has left in the run directory, once no trainer writes there any more."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from fluxguard.launch import masking
from fluxguard.rundir import RunDir, write_whole

_PATTERNS = ("last-words.*.json", "exit.*.json", "healed.*.jsonl", "stacks.*.txt")
_LARGEST = 4 << 20


def scrub(run: RunDir, secrets: frozenset[str]) -> None:
    """Mask the files that the guard and the keeper have written; what cannot be rewritten stays as it is. Never raises.

    The trainer's own output is not touched: it is the user's, and closed to others.
    """
    for path in _files(run.root):
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_size > _LARGEST:
                continue
            text = path.read_bytes().decode("utf-8")
            clean = _clean(path.suffix, text, secrets)
            if clean != text:
                write_whole(path, clean.encode())


def _files(root: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        with contextlib.suppress(OSError):
            yield from sorted(root.glob(pattern))


def _clean(kind: str, text: str, secrets: frozenset[str]) -> str:
    """Return the text of a file without secrets. What is JSON is masked by value, so that it stays JSON."""
    if kind == ".txt":
        return masking.mask(text, secrets)
    parts = text.splitlines(keepends=True) if kind == ".jsonl" else [text]
    return "".join(_clean_json(part, secrets) for part in parts)


def _clean_json(text: str, secrets: frozenset[str]) -> str:
    try:
        values = json.loads(text)
    except ValueError:
        return masking.mask(text, secrets)
    clean = masking.everywhere(values, secrets)
    return text if clean == values else json.dumps(clean) + "\n"
