"""What a rank brings to a meeting, as bytes; and whether all brought the same. Pure.

A record has a fixed head and is never unpickled: a peer can send a wrong one, but no code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fluxguard.errors import FluxguardError, RankFailed, RanksDisagree, RanksMissing

CAME, FAILED, OVER = range(3)
"""What has become of a rank: it came, it failed in what it did for all, or it waits no longer."""
PAYLOAD = 1024
"""Bytes that a rank may bring to a meeting."""

_VERSION = 1
_HEAD = struct.Struct("<BBqqHH")
_TAIL = struct.Struct("<IH")
_NONE = -1
_NAME, _MESSAGE, _WORDS = 200, 600, 300  # bytes of a name and a message, characters of what one rank does
_LONGEST = 900  # bytes of the message with which all give up
_ALIKE = (
    "all must come to the same ones, equally often: look for one under `if rank == 0`, and for a break, continue or "
    "return that one rank takes alone (`fluxguard scan` finds both)"
)
_RANKS, _TOLD = 64, 4  # of the missing ranks, so many are numbered, and of so many it is told what they do


class Record(NamedTuple):
    """What one rank brings to one meeting."""

    kind: str
    what: str
    sequence: int = 0
    """How many collectives this rank has begun; for people, not compared: part of the ranks may have done one more."""
    epoch: int | None = None
    step: int | None = None
    """None for what this rank does not know; it is not compared then."""
    status: int = CAME
    who: bytes = b""
    """Which process it is; said at the first meeting."""
    payload: bytes = b""

    def pack(self) -> bytes:
        """Return it as bytes: first what all must have in common, then what is this rank's own."""
        tail = _TAIL.pack(self.sequence & 0xFFFFFFFF, len(self.who))
        return b"".join((self.common(), tail, self.who, self.payload))

    def common(self) -> bytes:
        """Return how the records of all ranks begin when they agree."""
        kind, what = _cut(self.kind, _NAME), _cut(self.what, _NAME)
        epoch = _NONE if self.epoch is None else self.epoch
        step = _NONE if self.step is None else self.step
        return _HEAD.pack(_VERSION, self.status, epoch, step, len(kind), len(what)) + kind + what

    def place(self) -> str:
        """Return where this rank is, for a person."""
        known = [f"{name} {value}" for name, value in (("epoch", self.epoch), ("step", self.step)) if value is not None]
        return " ".join([f"#{self.sequence} {self.kind} {self.what!r}", *([f"({', '.join(known)})"] if known else [])])


def unpack(data: bytes) -> Record | None:
    """Return the record in `data`, None when it is none that this version knows."""
    if len(data) < _HEAD.size + _TAIL.size or data[0] != _VERSION:
        return None
    _, status, epoch, step, kind, what = _HEAD.unpack_from(data)
    names, tail = data[_HEAD.size :], _HEAD.size + kind + what
    if len(data) < tail + _TAIL.size:
        return None
    sequence, who = _TAIL.unpack_from(data, tail)
    rest = data[tail + _TAIL.size :]
    return Record(
        kind=names[:kind].decode("utf-8", "replace"),
        what=names[kind : kind + what].decode("utf-8", "replace"),
        sequence=sequence,
        epoch=None if epoch == _NONE else epoch,
        step=None if step == _NONE else step,
        status=status,
        who=rest[:who],
        payload=rest[who:],
    )


def payloads(found: Sequence[bytes], common: bytes) -> list[bytes] | None:
    """Return what each rank has brought, when all have come to the same and told nothing else; the usual case."""
    start = len(common)
    rest = start + _TAIL.size
    if not all(one.startswith(common) and not one[start + 4 : rest].strip(b"\0") for one in found):
        return None
    return [bytes(one[rest:]) for one in found]


def trouble(records: Sequence[Record | None], own: int) -> FluxguardError | None:
    """Return what keeps the rank `own` from going on, which is the same on every rank; None when all agree."""
    known = [record for record in records if record is not None]
    for rank, record in enumerate(records):
        if record is not None and record.status == OVER:
            return over_error(record, rank)
    if len(known) < len(records) or not _agree(known):
        said = [f"rank {rank} is at {_place(record)}" for rank, record in enumerate(records)]
        return RanksDisagree("the ranks have come to different places", said, _ALIKE)
    for rank, record in enumerate(known):
        if record.status == FAILED and rank != own:
            kind, _, message = record.payload.decode("utf-8", "replace").partition("\0")
            return RankFailed(rank, kind, message, record.what)
    return None


def _place(record: Record | None) -> str:
    return "a place that another version of fluxguard names" if record is None else record.place()


def _agree(records: Sequence[Record]) -> bool:
    epochs = {record.epoch for record in records} - {None}
    steps = {record.step for record in records} - {None}
    return max(len({(record.kind, record.what) for record in records}), len(epochs), len(steps)) <= 1


def failure(error: BaseException) -> bytes:
    """Return the payload that tells of an error: the name of its class and its message, cut where it is long."""
    return f"{type(error).__name__}\0".encode() + _cut(str(error), _MESSAGE)


def over(error: BaseException) -> bytes:
    """Return the payload of a rank that gave up with `error`, from which the others make theirs."""
    told: dict[str, object] = {"kind": type(error).__name__, "text": _cut(str(error), _LONGEST).decode()}
    if isinstance(error, RanksMissing):
        told = {
            "what": error.what[:_WORDS],
            "seconds": error.seconds,
            "ranks": error.ranks[:_RANKS],
            "doing": {str(rank): words[:_WORDS] for rank, words in list(error.doing.items())[:_TOLD]},
        }
    return json.dumps(told).encode()


def farewell(rank: int, error: BaseException | None) -> bytes:
    """Return what a rank leaves at the meetings to which it will not come, as bytes; `error` is why, if that is."""
    left = RanksMissing(f"a meeting (rank {rank} has left)", None, [rank], {rank: "has left the others, for good"})
    return Record(kind="", what="", status=OVER, payload=over(left if error is None else error)).pack()


def over_error(record: Record, rank: int) -> FluxguardError:
    """Return the error of this rank when `rank` gave up: the same where it is about all of them."""
    try:
        told = json.loads(record.payload)
        if "what" in told:
            doing = {int(late): str(words) for late, words in told["doing"].items()}
            return RanksMissing(str(told["what"]), told["seconds"], [int(late) for late in told["ranks"]], doing)
        kind, text = str(told["kind"]), str(told["text"])
    except (ValueError, KeyError, TypeError, AttributeError):
        kind, text = "an error that it could not tell", ""
    return RanksDisagree(text) if kind == RanksDisagree.__name__ else RankFailed(rank, kind, text, record.what)


def _cut(text: str, length: int) -> bytes:
    """Return the text as at most `length` bytes, without half a character at its end."""
    return text.encode("utf-8", "replace")[:length].decode("utf-8", "ignore").encode()
