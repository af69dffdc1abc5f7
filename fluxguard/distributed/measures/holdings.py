"""What each rank holds of a metric, in few bytes, and whether they can compute it together: values in, verdict out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from fluxguard.errors import InputError, RanksDisagree

_DIGEST = 8
_LONGEST_LISTS = 300  # characters; a payload has 1024 bytes, and the words that only explain get what is left of it
_SHOWN = 160
_ELLIPSIS = "..."
_BETWEEN = "; "
_UNEVEN = "where they rightly have different numbers of batches, say uneven=True"


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one rank holds of a metric."""

    updates: str
    """How often each part was updated, such as "4" or "4, 4, 3"."""
    cached: tuple[bool, ...]
    """Of each part, whether it would return the result of an earlier compute without looking at its states."""
    structure: str
    """A digest of what must be the same on all ranks: the parts, their states, shapes and types."""
    lists: tuple[str, ...]
    """Of each state that is a list to be joined, the type and shape of its items; empty where it has none."""
    words: str
    """What the digest was made of, in words; cut where it is long."""
    outside: bool = False
    """Whether this rank is not in the process group of the metric, and takes no part."""
    stranded: str = ""
    """The states that the process group has no backend for, in words; empty when there are none."""

    @classmethod
    def of(cls, structure: str, updates: Sequence[int], lists: Sequence[str], **rest: object) -> Held:
        """Make one from all its words, whatever their length."""
        once = set(updates)
        shown = str(updates[0]) if len(once) == 1 else ", ".join(map(str, updates))
        joined = "".join(lists)
        return cls(
            updates=_cut(shown, _LONGEST_LISTS),
            structure=_digest(structure + (shown if len(shown) > _LONGEST_LISTS else "")),
            lists=tuple(lists) if len(joined) + 4 * len(lists) <= _LONGEST_LISTS else (_digest("\n".join(lists)),),
            words=structure,
            **rest,  # type: ignore[arg-type]
        )

    def to_bytes(self, room: int) -> bytes:
        """Return it as JSON of at most `room` bytes, its words cut to fit."""
        whole = json.dumps(asdict(self)).encode()
        too_long = len(whole) - room
        if too_long <= 0:
            return whole
        shorter = replace(self, words=_cut(self.words, len(self.words) - too_long))
        return json.dumps(asdict(shorter)).encode()

    @classmethod
    def from_bytes(cls, said: bytes) -> Held:
        """Read what `to_bytes` has written."""
        values = json.loads(said)
        return cls(**{**values, "cached": tuple(values["cached"]), "lists": tuple(values["lists"])})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How ranks that hold the same metric compute it."""

    again: tuple[bool, ...]
    """Of each part, whether it must be computed again; not where every rank has its result already."""
    lists: tuple[str, ...]
    """Of each list to be joined, what its items are on the ranks that have any; for those that have none."""


def agree(what: str, held: Mapping[int, Held], *, uneven: bool = False, carries: str = "") -> Plan:
    """Return how to compute the metric `what`, of which `held` says by rank what each of them holds.

    Every rank comes to the same verdict, because it looks at nothing else. `carries` names what the process group can
    move. Raises RanksDisagree when the ranks hold different metrics or, without `uneven`, have updated them a different
    number of times, and InputError when states lie on a device that the group has no backend for.
    """
    if len({one.structure for one in held.values()}) > 1:
        raise RanksDisagree(f"the ranks hold different metrics under {what!r}", _told(held))
    if not uneven and len({one.updates for one in held.values()}) > 1:
        said = [f"rank {rank}: {one.updates}" for rank, one in held.items()]
        raise RanksDisagree(f"the ranks have updated {what!r} a different number of times ({_UNEVEN})", said)
    stranded = [rank for rank, one in held.items() if one.stranded]
    if stranded:
        raise InputError(what, _stranded(stranded, held[stranded[0]].stranded, carries))
    again = tuple(not all(part) for part in zip(*(one.cached for one in held.values()), strict=True))
    return Plan(again=again, lists=_joined(what, held))


def only_some(held: Mapping[int, Held]) -> tuple[int, ...]:
    """Return the ranks that have a result which others lack."""
    parts = list(zip(*(one.cached for one in held.values()), strict=True))
    mixed = [number for number, part in enumerate(parts) if any(part) and not all(part)]
    return tuple(rank for rank, one in held.items() if any(one.cached[number] for number in mixed))


def _told(held: Mapping[int, Held]) -> list[str]:
    """Return the words of each rank, from a little before where they first differ."""
    texts = [one.words for one in held.values()]
    shortest = min(map(len, texts))
    same = next((at for at in range(shortest) if len({text[at] for text in texts}) > 1), shortest)
    begin = texts[0].rfind(_BETWEEN, 0, same) + len(_BETWEEN) if same > _SHOWN // 2 else 0
    lead = _ELLIPSIS if begin else ""
    return [f"rank {rank}: {lead}{_cut(one.words[begin:], _SHOWN) or 'no more'}" for rank, one in held.items()]


def _joined(what: str, held: Mapping[int, Held]) -> tuple[str, ...]:
    """Return what the items of each list are; they must be the same on all ranks that have any."""
    found = []
    for state in zip(*(one.lists for one in held.values()), strict=True):
        kinds = {kind for kind in state if kind}
        if len(kinds) > 1:
            said = [f"rank {rank}: {kind or 'none'}" for rank, kind in zip(held, state, strict=True)]
            raise RanksDisagree(f"the ranks hold different items in a list of {what!r}", said)
        found.append("".join(kinds))
    return tuple(found)


def _stranded(ranks: Sequence[int], states: str, carries: str) -> str:
    where = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return (
        f"on {where} {states}, and the process group ({carries}) has no backend for it: move the metric with "
        "metric.to(device) before its first update, without compute_on_cpu, or make the group with "
        "backend='cpu:gloo,cuda:nccl'"
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).hexdigest()


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(0, longest - len(_ELLIPSIS))] + _ELLIPSIS
