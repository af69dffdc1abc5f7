"""What this rank does together with the others, noted so that whoever watches can tell who is late, and to what.

Every rank of a training comes to the same collectives in the same order. Each notes its own in its heartbeat, with a
number; nothing here talks to another rank, waits, or raises.
"""

from __future__ import annotations

import time

from fluxguard.guard import pulse
from fluxguard.heartbeat import DONE, FAILED, OPEN, Collective


class _Noted:
    """The collectives of this process: how many have begun, and which go on."""

    __slots__ = ("begun", "last", "open")

    def __init__(self) -> None:
        self.begun = 0
        self.open: list[noted] = []
        self.last: tuple[noted, int] | None = None


_known = _Noted()


class noted:
    """A collective that begins with this block and ends with it.

    It has the next number; `kind` says which sort of meeting it is ("barrier"), `what` what it is for. Ranks that
    agree give the same one the same number. When the block ends with an error, that is noted too. Without a heart
    only the number is counted. A note costs about a microsecond.
    """

    __slots__ = ("_at", "_kind", "_what", "sequence")

    def __init__(self, kind: str, what: str) -> None:
        self._kind = kind.encode("utf-8", "replace")
        self._what = what.encode("utf-8", "replace")
        self._at = 0.0
        self.sequence = 0
        """Its number, counted from 1; 0 before the block begins."""

    def __enter__(self) -> noted:
        known = _known
        known.begun += 1
        self.sequence = known.begun
        self._at = time.monotonic()
        known.open.append(self)
        self._write(OPEN)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        known = _known
        if known.open and known.open[-1] is self:
            known.open.pop()
        elif self in known.open:  # another thread has one open too
            known.open.remove(self)
        self._write(DONE if kind is None else FAILED)
        if known.open:  # what it was a part of goes on
            known.open[-1]._write(OPEN)

    def _write(self, state: int) -> None:
        known = _known
        known.last = self, state
        heart = pulse.heart()
        if heart is not None:
            heart.note(self.sequence, self._kind, self._what, self._at, state, known.begun, len(known.open))


def begun() -> int:
    """Return how many collectives this process has begun."""
    return _known.begun


def last() -> Collective | None:
    """Return the collective that this process is in, or was in last, as its heartbeat would show it; None before."""
    if _known.last is None:
        return None
    one, state = _known.last
    return Collective(
        sequence=one.sequence,
        kind=one._kind.decode("utf-8", "replace"),
        what=one._what.decode("utf-8", "replace"),
        at=one._at,
        open=state == OPEN,
        failed=state == FAILED,
        begun=_known.begun,
        depth=len(_known.open),
    )
