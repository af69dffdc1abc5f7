"""The user's own collectives: noted for whoever watches, and when one fails, the ranks that are not in it are named."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator

from fluxguard.distributed.meetings import sight
from fluxguard.distributed.meetings.hall import Hall, hall
from fluxguard.distributed.meetings.line import StoreGone
from fluxguard.distributed.meetings.sight import DEAD, Sight
from fluxguard.errors import RanksMissing
from fluxguard.guard import peers
from fluxguard.guard.collectives import noted
from fluxguard.guard.watcher import Wait, watcher

logger = logging.getLogger(__name__)

_KIND = "collective"
_HEARING = 1.0  # what the store may take to say who is where
_STAY = 0.5  # in which the others can still ask, before the process that may hold the store ends
# Of what torch raises when another rank is not there, or not any more; what gloo raises has no class of its own.
_OF_OTHERS = re.compile(
    r"gloo|nccl|tim(ed|e) ?out|connection (was )?(closed|reset|refused)|broken pipe|socket|peer", re.IGNORECASE
)


@contextlib.contextmanager
def collective(what: str) -> Iterator[None]:
    """Note that this rank is in a collective that all ranks must join: `with collective("ids"): dist.gather(...)`.

    It adds no synchronisation, and costs some microseconds. What torch raises inside because other ranks are not
    there, when its own timeout has passed or a connection is gone, is RanksMissing on every rank that is, with who is
    missing and what it does instead; any other error is left as it is, and so is one when all ranks are there. A
    collective that lasts longer than the limit of a barrier is named in the log with these ranks: nothing but torch's
    own timeout can end it. One of NCCL returns at once, so what waits for its outcome belongs inside, too.
    """
    place = hall()
    with noted(_KIND, what) as note:
        if place is None:
            yield
            return
        began = time.monotonic()
        try:
            with _named_when_late(place, what, note.sequence):
                yield
        except RuntimeError as error:
            if not _OF_OTHERS.search(str(error)):
                raise
            absent = _absent(place, what, note.sequence, failed=True)
            if place.rank == 0:
                time.sleep(_STAY)
            if not absent:
                raise
            raise _missing(absent, what, note.sequence, time.monotonic() - began) from error


def is_there(seen: Sight, what: str, sequence: int) -> bool:
    """Return whether a rank has come to the collective `what`, which has the number `sequence` on this one."""
    word = seen.word
    if word is None or (seen.life == DEAD and not word.failed):
        return False  # one that has told of the failure before it ended was there
    return word.begun > sequence or (word.begun == sequence and word.what == what)


def _absent(place: Hall, what: str, sequence: int, *, failed: bool = False) -> dict[int, Sight]:
    """Return the ranks that are not there, with what is seen of them."""
    try:
        told = place.hear(failed=failed).within(_HEARING) or {}
    except StoreGone:
        told = {}
    seen = {}
    for rank in range(place.size):
        if rank != place.rank:
            who, word = told.get(rank, (None, None))
            seen[rank] = sight.see(rank, who or place.known.get(rank), word, 0.0)
    return {rank: one for rank, one in seen.items() if not is_there(one, what, sequence)}


def _missing(absent: dict[int, Sight], what: str, sequence: int, seconds: float) -> RanksMissing:
    ranks = ", ".join(map(str, absent))
    named = f"rank{'s' if len(absent) > 1 else ''} {ranks} did not come, or left"
    return RanksMissing(
        f"{_KIND} {what!r} (#{sequence}; {named}; torch gave it up after {seconds:.1f} s)",
        None,
        list(absent),
        {rank: one.words() for rank, one in absent.items()},
    )


@contextlib.contextmanager
def _named_when_late(place: Hall, what: str, sequence: int) -> Iterator[None]:
    limit = peers.limit_of(place.longer)
    wait = Wait(what, limit, time.monotonic(), lambda wait: _say_late(place, wait, sequence), False)
    watcher().open(wait)
    try:
        yield
    finally:
        watcher().close(wait)


def _say_late(place: Hall, wait: Wait, sequence: int) -> float:
    """Say it on a thread of its own: the watcher must not wait for the store."""
    waited = time.monotonic() - wait.since

    def say() -> None:
        late = "; ".join(f"rank {rank} {one.words()}" for rank, one in _absent(place, wait.what, sequence).items())
        logger.warning(
            "collective %r (#%d) goes on for %.0f s: %s", wait.what, sequence, waited, late or "all are in it"
        )

    threading.Thread(target=say, name="fluxguard-late", daemon=True).start()
    return wait.limit
