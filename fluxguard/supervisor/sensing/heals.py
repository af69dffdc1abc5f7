"""What the guard put right without ending the trainer: read from the files that it appends to, line by line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fluxguard.launch import masking
from fluxguard.rundir import VERSION, RunDir

_NAME = re.compile(r"healed\.(\d{1,6})\.jsonl")
_AT_ONCE = 1 << 20
_LONGEST_TEXT = 500
_MOST = 1000
"""Of one attempt; a guard heals a few times, so that more is somebody else's writing."""


@dataclass(frozen=True, kw_only=True)
class Heal:
    """One thing that went wrong in an attempt and was put right in place."""

    attempt: str
    rank: int
    number: int
    """Which of its rank in its attempt, counted from 1."""
    step: int
    """True steps when it happened."""
    time: float
    """When it was told, seconds since the epoch."""
    what: str
    """The wait in plain words."""
    cause: str
    why: str
    """What was wrong."""
    seconds: float
    """From the beginning of the wait until it was right again."""
    identical: bool
    """Whether the training goes on bit for bit as it would have."""
    doubt: str
    """Why it may not; empty when it does."""
    file: str | None
    workers: tuple[int, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "workers": list(self.workers)}


def words(values: Mapping[str, Any]) -> str:
    """Return one sentence about a heal, given its values."""
    where = f"{values.get('what')} ({values['file']})" if values.get("file") else str(values.get("what"))
    doubt = values.get("doubt") or "nobody can say"
    goes_on = "bit for bit as it would have" if values.get("identical") else f"though maybe not identically: {doubt}"
    return (
        f"put right in place at step {values.get('step')} after {float(values.get('seconds') or 0):.1f} s: "
        f"{where}, because {values.get('why')}; the training goes on {goes_on}"
    )


class Heals:
    """Reads what is new in the files of one attempt, of all ranks. What is torn, foreign or not ours is passed over."""

    def __init__(self, run: RunDir, attempt: str) -> None:
        self._run = run
        self._attempt = attempt
        self._read: dict[str, int] = {}
        self._known: tuple[Heal, ...] = ()

    def look(self) -> tuple[Heal, ...]:
        """Return all heals of the attempt so far, in the order in which they were read."""
        for rank, path, size in self._files():
            position = self._read.get(path, 0)
            if size > position:
                self._read[path] = position + self._take(rank, _part(path, position))
        return self._known

    def _files(self) -> list[tuple[int, str, int]]:
        try:
            with os.scandir(self._run.root) as entries:
                named = [(found, entry) for entry in entries if (found := _NAME.fullmatch(entry.name))]
                return sorted((int(found[1]), entry.path, entry.stat().st_size) for found, entry in named)
        except OSError:
            return []

    def _take(self, rank: int, data: bytes) -> int:
        """Take the whole lines in `data`; return how many bytes they are. A line without an end is not there yet."""
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) >= _AT_ONCE:
            return len(data)  # no line of ours is as long
        for line in data[:whole].splitlines():
            heal = _heal(line, self._attempt, rank, 1 + sum(one.rank == rank for one in self._known))
            if heal is not None and len(self._known) < _MOST:
                self._known = (*self._known, heal)
        return whole


def _part(path: str, position: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read(_AT_ONCE)
    except OSError:
        return b""


def _heal(line: bytes, attempt: str, rank: int, number: int) -> Heal | None:
    try:
        values = json.loads(line)
        if values["version"] != VERSION or values["attempt"] != attempt:
            return None
        return Heal(
            attempt=attempt,
            rank=rank,
            number=number,
            step=max(0, int(values["step"])),
            time=_number(values["time"]),
            what=_text(values["what"]),
            cause=_text(values["cause"]),
            why=_text(values["why"]),
            seconds=_number(values["seconds"]),
            identical=values["identical"] is True,
            doubt=_text(values.get("doubt") or ""),
            file=_text(values["file"]) if values.get("file") else None,
            workers=tuple(int(worker) for worker in values.get("workers") or ()),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(value)
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return masking.mask(" ".join(value.split())[:_LONGEST_TEXT])
