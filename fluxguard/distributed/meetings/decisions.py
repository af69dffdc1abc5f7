"""One rank decides, all ranks agree."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from fluxguard.distributed.meetings import meeting
from fluxguard.distributed.meetings.hall import hall

Value = bool | int | float | str | None
T = TypeVar("T", bound=Value)

_KIND = "decide"
_MAIN = 0
_LONGEST = 256  # bytes of a text or a number: a decision, not data
_FLOAT = struct.Struct("<d")


def decide(fn: Callable[[], T], what: str, *, epoch: int | None = None, step: int | None = None) -> T:
    """Return on every rank what `fn` returns on rank 0, where alone it is called: whether to stop, save or sample.

    All ranks must come to it, with the same `what`, epoch and step (None: those of the heartbeat, if it knows them).
    The value is a bool, int, float, str or None; up to 256 bytes of it. While rank 0 shows signs of life the others
    are patient.

    What `fn` raises on rank 0 is raised there, and RankFailed on the others; so is TypeError for another kind of
    value, and ValueError for one that is too long. Raises what `meeting.meet` raises. Alone it calls `fn`.
    """
    place = hall()
    if place is None:
        return unpack(pack(fn()))  # type: ignore[return-value]
    mine = b""
    if place.rank == _MAIN:
        try:
            mine = pack(fn())
        except BaseException as error:
            meeting.fail(_KIND, what, error, epoch=epoch, step=step)
            raise
    told = meeting.meet(_KIND, what, payload=mine, epoch=epoch, step=step)
    return unpack(told[_MAIN])  # type: ignore[return-value]


def pack(value: Value) -> bytes:
    """Return a decision as bytes. Raises TypeError for what is none and ValueError for one that is too long."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, float):
        return b"f" + _FLOAT.pack(value)
    if isinstance(value, int):
        data = b"i%d" % value
    elif isinstance(value, str):
        data = b"s" + value.encode("utf-8", "surrogatepass")
    else:
        raise TypeError(
            f"a decision is a bool, int, float, str or None, not {type(value).__name__}; of a tensor use .item()"
        )
    if len(data) > _LONGEST:
        raise ValueError(f"a decision has at most {_LONGEST - 1} bytes, not {len(data) - 1}: it is no way to send data")
    return data


def unpack(data: bytes) -> Value:
    """Return the decision in `data`. Raises ValueError when there is none."""
    kind, rest = data[:1], data[1:]
    if kind == b"f":
        return float(_FLOAT.unpack(rest)[0])
    if kind == b"s":
        return rest.decode("utf-8", "surrogatepass")
    if kind == b"i":
        return int(rest)
    if data not in (b"n", b"b0", b"b1"):
        raise ValueError("rank 0 has sent no decision")
    return None if data == b"n" else data == b"b1"
