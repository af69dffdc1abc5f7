"""One rank that waits at one meeting: how long, for whom, and what it says when it gives up."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import NoReturn

from fluxguard.distributed.meetings import sight
from fluxguard.distributed.meetings.hall import Hall, Look
from fluxguard.distributed.meetings.line import Reply, StoreGone
from fluxguard.distributed.meetings.records import Record
from fluxguard.distributed.meetings.sight import DEAD, LIVES, STOPPED, Sight, Who, Word
from fluxguard.errors import RanksMissing
from fluxguard.guard import deadlines, peers
from fluxguard.guard.watcher import awake

_LOOK = 0.25  # between two looks at those who are missing: four within the second after which a death is named
_SILENT = 0.75  # a store that has not answered a look for so long does not answer
_SOON = 0.02  # when something is due, but an answer not there yet
_DYING = 0.5  # in which a process whose connections are closed is seen to be dead
_HOST = 0
_TOLD = 4  # ranks in one line of the log
logger = logging.getLogger(__name__)


class Waiting:
    """A wait of one rank for the others."""

    def __init__(self, place: Hall, number: int, record: Record, limit: float | None, now: float) -> None:
        self.limit = peers.limit_of(place.longer) if limit is None else limit
        self.missing: tuple[int, ...] = ()
        """Who is known not to have come."""
        self._place = place
        self._number = number
        self._record = record
        self._others = tuple(rank for rank in range(place.size) if rank != place.rank)
        self._told: Mapping[int, tuple[Who | None, Word | None]] = {}
        self._heard: dict[int, tuple[int, float]] = {}
        self._sights: dict[int, Sight] = {}
        self._signs: peers.Signs | None = None
        self._since = now
        self._exact = limit is not None
        self._looking: Reply[Look] | None = None
        self._asked = now
        self._dead: frozenset[int] = frozenset()
        self._next = max(self.limit, _SOON)
        self._told_at = now + self.limit
        self._here_since = math.inf

    def until_all_are_here(self, reply: Reply[list[bytes]]) -> list[bytes]:
        """Return the records of all ranks. Raises RanksMissing when it makes no sense to wait longer."""
        try:
            while True:
                found = reply.within(max(0.0, min(_LOOK, self._next, deadlines.remaining())))
                if found is not None:
                    return found
                deadlines.check()
                self.look(awake())
        except StoreGone as gone:
            self._lost_store(gone)

    def look(self, now: float) -> None:
        """Look who is missing and what they do. Raises RanksMissing when it makes no sense to wait longer."""
        place, answered = self._place, None
        if self._looking is not None:
            answered = self._looking.within(0)
        if answered is not None:
            self._hear(answered, now)
        dead = frozenset(rank for rank in self.missing or self._others if self._see(rank, now).life == DEAD)
        if answered is not None and (still := dead & self._dead & {*self.missing}):  # looked for after its death
            raise self._error(None, sorted(still), f"{_named(sorted(still))} did not come")
        if self._looking is None or answered is not None:
            self._dead = dead
            self._looking = place.look(self._number, self.missing or self._others)
            self._asked = now
        silent = now - min(self._asked, self._here_since)
        left = min(self.limit - silent, *(self._left(rank, now) for rank in self.missing or self._others))
        self._next = max(left, _SOON)
        if left <= 0:
            self._give_up(now, silent)
        elif now >= self._told_at:
            self._tell(now)

    def _tell(self, now: float) -> None:
        """Say for whom it waits, although it still may."""
        self._told_at = now + self.limit
        late = "; ".join(f"rank {rank} {self._see(rank, now).words()}" for rank in self.missing[:_TOLD])
        waited = now - self._since
        logger.warning("%s has waited %.0f s and goes on: %s", self._record.place(), waited, late or "no answer")

    def _give_up(self, now: float, silent: float) -> None:
        if silent > min(_SILENT, self.limit):
            store = f"the store of the ranks, in {_where()}, does not answer"
            raise self._error(self.limit, self._suspects(now), store)
        if self.missing:
            raise self._error(self.limit, self.missing, f"{_named(self.missing)} did not come")

    def _hear(self, look: Look, now: float) -> None:
        self.missing = look.missing
        self._here_since = math.inf if look.missing else min(self._here_since, now)  # for this rank's own wait to end
        self._told = look.told
        for rank, (_, word) in look.told.items():
            if word is not None and self._heard.get(rank, (-1, now))[0] != word.number:
                self._heard[rank] = word.number, now

    def _see(self, rank: int, now: float) -> Sight:
        who, told = self._told.get(rank, (None, None))
        heard = self._heard.get(rank)
        return sight.see(rank, who or self._place.known.get(rank), told, 0.0 if heard is None else now - heard[1])

    def _left(self, rank: int, now: float) -> float:
        if self._signs is None:
            self._signs = peers.signs(self.limit, self._place.timeout, self._since, self._sign, exact=self._exact)
        self._sights[rank] = self._see(rank, now)
        return self._signs.left(rank, now)

    def _sign(self, rank: int) -> peers.Sign | None:
        return self._sights[rank].sign()

    def _suspects(self, now: float) -> list[int]:
        """Return whose fault it may be that the store is gone: who is seen to be dead or stopped, else its host."""
        seen = [rank for rank in self._others if self._see(rank, now).life in (DEAD, STOPPED)]
        innocent = _by_launcher() and self._see(_HOST, now).life == LIVES
        return seen or [rank for rank in (_HOST,) if rank != self._place.rank and not innocent]

    def _lost_store(self, gone: StoreGone) -> NoReturn:
        until = time.monotonic() + _DYING
        while not (dead := self._dead_ones()) and time.monotonic() < until:
            time.sleep(_LOOK / 10)
        suspects = dead or self._suspects(awake())
        raise self._error(None, suspects, f"the store of the ranks, in {_where()}, is gone") from gone

    def _dead_ones(self) -> list[int]:
        return [rank for rank in self._others if self._see(rank, awake()).life == DEAD]

    def _error(self, seconds: float | None, ranks: Iterable[int], why: str) -> RanksMissing:
        now, ranks = awake(), tuple(ranks)
        doing = {rank: self._see(rank, now).words() for rank in ranks}
        record = self._record
        return RanksMissing(f"{record.kind} {record.what!r} (#{record.sequence}; {why})", seconds, ranks, doing)


def _named(ranks: Iterable[int]) -> str:
    ranks = tuple(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _where() -> str:
    """Return who holds the store."""
    return "the launcher on rank 0's machine" if _by_launcher() else "the process of rank 0"


def _by_launcher() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
