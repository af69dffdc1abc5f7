"""What a check of the ranks has measured, and what it says: who is slowest, and what is wrong. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

_NOTABLE = 1.25  # so many times slower than the median is worth a word; less is chance
_SKEW = 1.0  # seconds between two clocks from which the logs of two machines cannot be read together any more


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one rank has measured."""

    rank: int
    host: str
    device: str
    """"GPU 0" or "CPU"."""
    correct: bool = True
    """Whether every all-reduce gave the right sums."""
    link: float | None = None
    """Bytes a second to the better of its two neighbours; None alone."""
    latency: float | None = None
    """Seconds of an all-reduce of one number; None alone."""
    compute: float = 0.0
    """Floating point operations a second, of a small matrix product."""
    clock: float | None = 0.0
    """Seconds by which its clock is ahead of rank 0's; None when that was not measured."""
    clock_error: float = 0.0
    """By how much `clock` may be wrong."""

    def to_text(self) -> str:
        """Return it as `from_text` reads it."""
        values = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in vars(self).items()
        }
        return json.dumps(values)

    @classmethod
    def from_text(cls, text: str | bytes) -> Row:
        """Read what `to_text` has written."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of the check, the same on every rank."""

    rows: tuple[Row, ...]
    backend: str
    bandwidth: float | None = None
    """Bytes a second of a large all-reduce, as each rank sees it; None alone."""

    @property
    def good(self) -> bool:
        """Whether collectives give the right answers."""
        return all(row.correct for row in self.rows)

    @property
    def slowest(self) -> tuple[Row, str, float] | None:
        """The slowest rank, at what, and how many times slower than the median of all; None alone."""
        found = [
            (row, what, times)
            for what, values in (
                # Of two ranks both have the one link there is, and differ by chance alone.
                ("its links", [row.link if len(self.rows) > 2 else None for row in self.rows]),
                ("computing", [row.compute for row in self.rows]),
            )
            for row, times in zip(self.rows, _times(values), strict=True)
        ]
        return max(found, key=lambda one: one[2]) if len(self.rows) > 1 and found else None

    def words(self) -> list[str]:
        """Return what the figures mean, a sentence each."""
        said = []
        wrong = [str(row.rank) for row in self.rows if not row.correct]
        if wrong:
            said.append(f"All-reduce gives WRONG sums on rank {', '.join(wrong)}: do not train on this.")
        if (slowest := self.slowest) is not None:
            row, what, times = slowest
            alike = times < _NOTABLE
            slow = f"Slowest is rank {row.rank} on {row.host}: {times:.2f} times slower than the median at {what}"
            said.append(f"{slow}, which is usual." if alike else f"{slow}; every step waits for it.")
        for row in self.rows:
            if row.clock is not None and abs(row.clock) - row.clock_error > _SKEW:
                ahead = "ahead of" if row.clock > 0 else "behind"
                said.append(
                    f"The clock of {row.host} (rank {row.rank}) is {abs(row.clock):.1f} s {ahead} rank 0's: "
                    "logs cannot be compared; let both machines ask a time server."
                )
        return said

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, for scripts."""
        slowest = self.slowest
        return {
            "good": self.good,
            "backend": self.backend,
            "bandwidth": self.bandwidth,
            "ranks": [asdict(row) for row in self.rows],
            "slowest": None if slowest is None else {"rank": slowest[0].rank, "at": slowest[1], "times": slowest[2]},
            "words": self.words(),
        }


def rounds(size: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of neighbours on a ring of ranks, in rounds in which no rank has two."""
    if size < 2:
        return []
    pairs = [(rank, (rank + 1) % size) for rank in range(size if size > 2 else 1)]
    odd_one_out = pairs[-1:] if size % 2 and size > 1 else []
    rest = pairs[: len(pairs) - len(odd_one_out)]
    return [one for one in (rest[0::2], rest[1::2], odd_one_out) if one]


def offset(samples: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return by how much our clock is ahead of another one, and by how much that may be wrong.

    Each sample is when we asked, what the other one said, and when that was here; the quickest answer is the best.
    """
    asked, said, here = min(samples, key=lambda one: one[2] - one[0])
    return (asked + here) / 2 - said, (here - asked) / 2


def _times(values: Sequence[float | None]) -> list[float]:
    """Return how many times slower than the median each one is; 1 where nothing was measured."""
    known = [value for value in values if value]
    usual = statistics.median(known) if known else 0.0
    return [usual / value if value else 1.0 for value in values]
