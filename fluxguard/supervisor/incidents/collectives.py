"""What the flight recorders of several ranks say together: which rank lacks which collective.

Each rank writes the collectives that it has come to, per group of ranks and with numbers that all ranks share. So the
rank whose last number is lowest is the one that the others wait for, and two that call different things by one number
have taken different ways.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fluxguard.supervisor.checkpoints import plain
from fluxguard.supervisor.incidents import recorder

_MOST_ENTRIES = 20_000
_MOST_RANKS = 1024
_LONGEST = 120
_LARGEST = 1 << 63
_OF_TORCH = ("/torch/", "\\torch\\", "/accelerate/", "\\accelerate\\")
"""Folders of functions that only hand a collective on."""
_OVER = "completed"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective that a rank came to."""

    group: str
    """The group of ranks."""
    sequence: int
    """Its number in the group."""
    op: str
    """What it is, such as all_reduce."""
    state: str = ""
    """scheduled, started or completed."""
    where: str = ""
    """The function that called it, with its file and line."""

    @property
    def words(self) -> str:
        """Say it."""
        return f"#{self.sequence} {self.op}{f' in {self.where}' if self.where else ''}"


@dataclass(frozen=True, kw_only=True)
class Flight:
    """What one rank has recorded."""

    rank: int
    calls: tuple[Call, ...] = ()
    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The ranks of each group, as far as they are written down."""

    def last(self, group: str) -> Call | None:
        """Return the collective of a group that it came to last."""
        return max((one for one in self.calls if one.group == group), key=lambda one: one.sequence, default=None)

    def at(self, group: str, sequence: int) -> Call | None:
        """Return the collective of a number, where the rank still remembers it."""
        return next((one for one in self.calls if (one.group, one.sequence) == (group, sequence)), None)


def read(path: Path) -> Flight:
    """Return what a dump says. Raises OSError, and ValueError for what is none; nothing that it names is called."""
    number = path.name[len(path.name.rstrip("0123456789")) :]
    return flight(int(number or 0), plain.read(recorder.content(path)))


def flight(rank: int, values: object) -> Flight:
    """Return what a dump of a rank says. Raises ValueError when it is none; what is odd in it is passed over."""
    if not isinstance(values, dict) or not isinstance(values.get("entries"), list):
        raise ValueError("is no dump of a flight recorder")
    known = values.get("pg_config")
    groups = {
        str(name): ranks
        for name, one in islice(known.items(), _MOST_RANKS)
        if isinstance(one, dict) and (ranks := _ranks(one.get("ranks")))
    } if isinstance(known, dict) else {}  # fmt: skip
    entries = values["entries"][-_MOST_ENTRIES:]
    return Flight(rank=rank, calls=tuple(filter(None, map(_call, entries))), groups=groups)


def _ranks(text: object) -> frozenset[int]:
    """Return the ranks that a group is said to have, as `[0, 1]`."""
    try:
        found = ast.literal_eval(text) if isinstance(text, str) and len(text) < _MOST_RANKS * 8 else ()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return frozenset()
    return frozenset(one for one in found if isinstance(one, int)) if isinstance(found, (list, tuple)) else frozenset()


def _call(entry: Any) -> Call | None:
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    group, sequence = entry.get("process_group"), entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(sequence, int) or abs(sequence) > _LARGEST or not isinstance(group, (list, tuple)) or not group:
        return None
    return Call(
        group=_short(group[0]),
        sequence=sequence,
        op=_short(entry.get("profiling_name", "?")).rpartition(":")[2],
        state=_short(entry.get("state", "")),
        where=_where(entry.get("frames")),
    )


def _where(frames: object) -> str:
    """Return the innermost function that is not torch's own."""
    known = [one for one in islice(frames, 64) if isinstance(one, dict)] if isinstance(frames, list) else []
    files = [(one, _short(one.get("filename", ""))) for one in known]
    mine = [(one, file) for one, file in files if not any(part in file for part in _OF_TORCH)]
    for one, file in (mine or files)[:1]:
        name, line = _short(one.get("name", "?")), _short(one.get("line"))
        return f"{name} ({file.replace(chr(92), '/').rpartition('/')[2]}:{line})"
    return ""


def _short(value: object) -> str:
    """Return a value as text of bounded length; of a path its end counts.

    What holds other values says nothing: a few bytes can hold the same list so often that no memory holds its text.
    """
    text = value[-_LONGEST:] if isinstance(value, str) else str(value)[:_LONGEST] if _scalar(value) else "?"
    return " ".join(text.split())


def _scalar(value: object) -> bool:
    return isinstance(value, (int, float))


def compared(flights: Iterable[Flight]) -> tuple[str, ...]:
    """Return which rank lacks which collective, and where ranks have taken different ways, in words."""
    known = sorted(flights, key=lambda one: one.rank)
    names = sorted({call.group for one in known for call in one.calls})
    return tuple(words for name in names for words in _of_group(name, known, several=len(names) > 1))


def _of_group(name: str, flights: Sequence[Flight], *, several: bool) -> Iterator[str]:
    where = f" of group {name}" if several else ""
    members = frozenset().union(*(one.groups.get(name, frozenset()) for one in flights))
    mine = [one for one in flights if one.last(name) or one.rank in members or not members]
    lasts = {one.rank: last.sequence if (last := one.last(name)) else 0 for one in mine}
    if len(mine) < 2:
        return
    if missing := sorted(members - lasts.keys()):
        yield f"rank {', '.join(map(str, missing))} left no record of its collectives"
    furthest = max(lasts.values())
    for one in sorted(mine, key=lambda one: lasts[one.rank]):
        if lasts[one.rank] < furthest:
            yield _lacking(one, name, lasts[one.rank] + 1, mine) + where
    yield from (f"{words}{where}" for words in _differing(name, mine))


def _lacking(late: Flight, name: str, sequence: int, flights: Sequence[Flight]) -> str:
    """Say which collective a rank did not come to, who waits there, and where it was last."""
    came = [one.rank for one in flights if (last := one.last(name)) and last.sequence >= sequence]
    call = next((found for one in flights if (found := one.at(name, sequence))), None)
    last = late.last(name)
    before = (
        f"its last was {last.words}{', which is over' if last.state == _OVER else ''}" if last else "it came to none"
    )
    what = call.words if call else f"#{sequence}"
    return f"rank {late.rank} did not come to {what}, as rank {', '.join(map(str, came))} did; {before}"


def _differing(name: str, flights: Sequence[Flight]) -> Iterator[str]:
    """Say where two ranks call different things by one number; the first such number tells it all."""
    known = [(one.rank, {call.sequence: call for call in one.calls if call.group == name}) for one in flights]
    shared = sorted(set.intersection(*(set(calls) for _, calls in known)))
    for sequence in shared:
        calls = [(rank, mine[sequence]) for rank, mine in known]
        if len({call.op for _, call in calls}) > 1:
            said = ", ".join(
                f"rank {rank} calls {call.op}{f' in {call.where}' * bool(call.where)}" for rank, call in calls
            )
            yield f"the ranks do not agree about #{sequence}: {said}"
            return


def told(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return what dumps say together, and which of them cannot be read."""
    flights, unread = list[Flight](), list[str]()
    for path in paths:
        try:
            flights.append(read(path))
        except (OSError, ValueError) as error:
            unread.append(f"the flight recorder's {path.name} {error}")
    return (*compared(flights), *unread)
