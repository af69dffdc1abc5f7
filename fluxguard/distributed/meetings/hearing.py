"""What each rank does for itself and all must have done: a failure of one is heard by every rank."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from fluxguard.distributed.meetings import meeting
from fluxguard.errors import FluxguardError, RankFailed, RanksDisagree, RanksMissing

_HEARD = (RanksMissing, RanksDisagree, RankFailed)
"""Of a meeting within the block: every rank has them, so there is nobody left to tell."""
_KIND = "together"
_LONGEST = 700  # bytes of a message, before it is escaped for its way


@contextlib.contextmanager
def together(
    what: str, *, epoch: int | None = None, step: int | None = None, limit: float | None = None
) -> Iterator[None]:
    """Do a block on every rank and go on when all have: none waits for one that failed.

    Raises on a rank whose block failed its own error, on the others RankFailed with the first rank that did; and what
    `barrier` raises.
    """
    try:
        yield
    except _HEARD:
        raise
    except Exception as error:
        with contextlib.suppress(FluxguardError):  # of the meeting: its own error says more
            meeting.meet(_KIND, what, payload=failure(error), epoch=epoch, step=step, limit=limit)
        raise
    hear(meeting.meet(_KIND, what, epoch=epoch, step=step, limit=limit), what)


def hear(payloads: list[bytes], what: str) -> None:
    """Raise RankFailed when one of these, by rank, tells of a failure."""
    for rank, payload in enumerate(payloads):
        if payload:
            told = json.loads(payload)
            raise RankFailed(rank, told["kind"], told["message"], what)


def failure(error: Exception) -> bytes:
    """Return an error as `hear` reads it: some hundred bytes."""
    message = str(error)
    while True:
        payload = json.dumps({"kind": type(error).__name__, "message": message}).encode()
        if len(payload) <= _LONGEST:
            return payload
        message = message[: len(message) * 3 // 4]
