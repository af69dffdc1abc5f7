"""The roll call in a store: every rank enters, rank 0 judges, and the first verdict holds for all.

Rank 0 opens a session under a word that nobody has used before, and only what stands under it counts. So nothing that
an earlier round, run or training has left in the store can be mistaken for an answer, whatever the launcher counts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from fluxguard.distributed.start import rollcall
from fluxguard.distributed.start.rollcall import Problem, Record
from fluxguard.distributed.world import Store

_FIRST_POLL, _LONGEST_POLL = 0.002, 0.1
_FAREWELL = 3.0  # how long those who know of a failure stay to tell it: launchers end them all with the first

SAID_AFTER = 10.0
"""Seconds after which the log says for whom or what a rank waits."""
SESSION = "session"
"""The key of the word of the last session that was opened."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a roll call."""

    session: str = ""
    nonces: tuple[str, ...] = ()
    """Of those who took part, by rank."""
    machines: tuple[int, ...] = ()
    """For each rank the number of its machine."""
    problem: Problem | None = None
    """None when the ranks can work together."""
    last: bool = False
    """Whether nobody else is expected: the time to come is over."""

    def to_text(self) -> str:
        """Return it as `from_text` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> Verdict:
        """Read what `to_text` has written."""
        values = json.loads(text)
        problem = values.pop("problem")
        return cls(
            session=values["session"],
            nonces=tuple(values["nonces"]),
            machines=tuple(values["machines"]),
            problem=Problem(**problem) if problem else None,
            last=values["last"],
        )


class Call:
    """One rank at the roll call; `look` does what can be done at once and never waits."""

    def __init__(
        self,
        store: Store,
        record: Record,
        *,
        word: str,
        limit: float,
        began: float,
        door: str = "",
        own: Problem | None = None,
        notes: str = "",
        lives: Callable[[Record], bool] = lambda record: False,
        more: Callable[[Iterable[int]], float] = lambda missing: 0.0,
        awaited: Callable[[str], None] = lambda whom: None,
    ) -> None:
        """`word` is one that nobody has used; `own` is what is wrong with this rank already; `notes` is what may be
        the reason when others do not come; `lives` says of another process whether it is known to live. `more` is
        asked at the limit for how many seconds to wait longer for the missing; `awaited` is told once, after SAID_AFTER
        seconds, who these are."""
        self._store = store
        self._record = record
        self._word = word
        self._limit = limit
        self._began = began
        self._door = door
        self._own = own
        self._notes = notes
        self._lives = lives
        self._more = more
        self._awaited: Callable[[str], None] | None = awaited
        self._opened = False
        self._entered = ""
        self._stayed = 0
        self._closed: dict[str, int] = {}
        self.remarks: tuple[str, ...] = ()
        """What is unusual and harms nothing; on rank 0, after the verdict."""
        self.session = ""
        """The last one that was seen."""

    def look(self, now: float) -> Verdict | None:
        """Return the verdict that holds for this rank; None while there is none yet."""
        main = self._record.rank == 0
        if main and not self._opened:
            earlier = self._open()
            if earlier is not None:
                return self._failed(rollcall.duplicate(self._record, earlier, self._door))
        self.session = self._read(SESSION)
        if self.session and self.session != self._entered:
            found = self._enter(self.session)
            if found is not None:
                return found
        found = self._verdict(self._entered) if self._entered else None
        if found is not None:
            return self._mine(found)
        if main:
            self._store.add(f"{self._word}/stay", 1)
            found = self._judge()
            if found is not None:
                return found
        if self._awaited is not None and now - self._began >= SAID_AFTER:
            self._awaited(f"rank {', '.join(map(str, self._absent()))}" if self._entered else "rank 0")
            self._awaited = None
        return self._over(now) if now - self._began >= self._limit else None

    def told(self, verdict: Verdict, now: float, since: float) -> bool:
        """Say that this rank knows of a failure (again and again), and return whether all others know it too."""
        key = self._entered or self.session
        if not key:
            return True
        if now == since:
            self._store.add(f"{key}/told", 1)
        self._store.add(f"{key}/stay", 1)
        expected = self._store.add(f"{key}/came", 0) if verdict.last else self._record.size
        return self._store.add(f"{key}/told", 0) >= expected or now - since >= _FAREWELL

    def _open(self) -> Record | None:
        """Open a session of our own; return who has rank 0 already, when that process is seen to live."""
        self._opened = True
        earlier = self._read(SESSION)
        other = self._record_of(earlier, 0) if earlier else None
        if other is not None and self._lives(other):
            self._object(earlier, rollcall.duplicate(self._record, other, self._door))
            return other
        self._store.set(f"{self._word}/first", self._record.to_text())
        self._store.set(SESSION, self._word)
        return None

    def _enter(self, session: str) -> Verdict | None:
        """Enter a session that was not seen before, or is over: then it may be one that we are too late for."""
        if self._entered == self._word and self._record.rank == 0:
            return self._usurped(session)
        over = self._verdict(session)
        if over is not None and session != self._word:
            return self._late(session, over)
        rank, nonce = self._record.rank, self._record.nonce
        holder = self._store.compare_set(f"{session}/claim/{rank}", "", nonce).decode()
        self._entered = session
        self._stayed = self._store.add(f"{session}/stay", 0)
        if holder != nonce:
            other = self._record_of(session, rank) or self._record
            self._object(session, rollcall.duplicate(self._record, other, self._door))
            return None
        first = Record.from_text(self._store.get(f"{session}/first"))
        problem = self._own or rollcall.other_size(self._record, first)
        if problem is not None:  # before our record, with which rank 0 may have all of them
            self._object(session, problem)
        self._store.set(f"{session}/record/{rank}", self._record.to_text())
        self._store.add(f"{session}/came", 1)
        return None

    def _late(self, session: str, over: Verdict) -> Verdict | None:
        """Return what a session that was over before we came means for us: most often nothing, it is an old one."""
        other = self._record_of(session, self._record.rank)
        if other is not None and self._lives(other):
            return self._failed(rollcall.duplicate(self._record, other, self._door))
        if over.problem is None:
            return None
        stayed = self._store.add(f"{session}/stay", 0)
        before = self._closed.setdefault(session, stayed)
        return over if stayed != before else None  # somebody is still there to tell it: it is of our own round

    def _usurped(self, session: str) -> Verdict:
        """Return what another session beside our own means: another rank 0 has opened it."""
        other = Record.from_text(self._store.get(f"{session}/first"))
        problem = rollcall.duplicate(self._record, other, self._door)
        self._object(session, problem)
        return self._propose(self._word, problem)

    def _judge(self) -> Verdict | None:
        """Return the verdict of rank 0, once somebody has objected or all have come."""
        size, word = self._record.size, self._word
        objection = self._read(f"{word}/objection")
        if objection:
            return self._propose(word, Problem(**json.loads(objection)))
        keys = [f"{word}/record/{rank}" for rank in range(size)]
        if self._store.add(f"{word}/came", 0) < size or not self._store.check(keys):
            return None
        records = [Record.from_text(self._store.get(key)) for key in keys]
        verdict = Verdict(
            session=word,
            nonces=tuple(one.nonce for one in records),
            machines=tuple(rollcall.machines(records)),
            problem=rollcall.judge(records),
        )
        self.remarks = tuple(rollcall.remarks(records))
        return self._mine(self._post(word, verdict))

    def _over(self, now: float) -> Verdict | None:
        """Return what is wrong when the limit has passed; None while those who are missing are waited for longer."""
        if self._own is not None:
            return self._failed(self._own)
        if not self._entered:
            over = self._verdict(self.session) if self.session else None
            if over is not None and over.problem is not None:
                return over
        stayed = self._store.add(f"{self._entered}/stay", 0) if self._entered else self._stayed
        if stayed == self._stayed:
            if self._longer([0], now):
                return None
            return self._failed(rollcall.nobody_calls(self._record, self._limit, self._door))
        self._stayed = stayed
        absent = self._absent()
        if self._longer(absent, now):
            return None
        came = [rank for rank in range(self._size()) if rank not in absent]
        return self._propose(
            self._entered, rollcall.missing(came, self._record.size, self._limit, self._door, self._notes)
        )

    def _size(self) -> int:
        return max(self._record.size, self._record.rank + 1)

    def _absent(self) -> list[int]:
        """Return who has not entered the session."""
        return [rank for rank in range(self._size()) if not self._store.check([f"{self._entered}/record/{rank}"])]

    def _longer(self, missing: Sequence[int], now: float) -> bool:
        """Return whether the limit was moved, because they may still come."""
        longer = self._more(missing) if missing else 0.0
        self._limit = max(self._limit, round(now - self._began + longer, 1)) if longer > 0 else self._limit
        return longer > 0

    def _object(self, session: str, problem: Problem) -> None:
        """Say what is wrong to rank 0 of a session. It alone passes the verdict: a session may be an old one."""
        self._store.compare_set(f"{session}/objection", "", json.dumps(asdict(problem)))

    def _mine(self, verdict: Verdict) -> Verdict:
        """Return a verdict as it concerns us: a good one that does not know us is good for another process only."""
        if verdict.problem is None and self._record.nonce not in verdict.nonces:
            other = self._record_of(verdict.session, self._record.rank) or self._record
            return self._failed(self._own or rollcall.duplicate(self._record, other, self._door))
        return verdict

    def _propose(self, session: str, problem: Problem, *, last: bool = False) -> Verdict:
        """Say what is wrong; return the first verdict of the session, or ours when that one was a good one."""
        first = self._post(session, Verdict(session=session, problem=problem, last=last))
        return first if first.problem is not None else self._failed(problem)

    def _post(self, session: str, verdict: Verdict) -> Verdict:
        return Verdict.from_text(self._store.compare_set(f"{session}/verdict", "", verdict.to_text()))

    def _verdict(self, session: str) -> Verdict | None:
        text = self._read(f"{session}/verdict")
        return Verdict.from_text(text) if text else None

    def _record_of(self, session: str, rank: int) -> Record | None:
        text = self._read(f"{session}/record/{rank}")
        return Record.from_text(text) if text else None

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _failed(self, problem: Problem) -> Verdict:
        return Verdict(problem=problem)


def attend(call: Call, known: Callable[[Problem], None] = lambda problem: None) -> Verdict:
    """Wait for the verdict, and after a bad one until all who came know it; bounded by the limit of the call.

    `known` is told of a problem before the others are. Raises what the store raises while there is no verdict.
    """
    poll = _FIRST_POLL
    while (verdict := call.look(time.monotonic())) is None:
        time.sleep(poll)
        poll = min(2 * poll, _LONGEST_POLL)
    if verdict.problem is not None:
        known(verdict.problem)
        with contextlib.suppress(RuntimeError):  # of the store, whose host may leave first
            _stay(call, verdict)
    return verdict


def _stay(call: Call, verdict: Verdict) -> None:
    since = now = time.monotonic()
    while not call.told(verdict, now, since):
        time.sleep(_LONGEST_POLL)
        now = time.monotonic()


def complain(store: Store, problem: Problem, until: float) -> None:
    """Tell the ranks of any session that opens until then what is wrong with a process whose rank is not known."""
    while not heard(store, problem) and time.monotonic() < until:
        time.sleep(_LONGEST_POLL)


def heard(store: Store, problem: Problem) -> bool:
    """Object to the session that is open now; return whether its ranks have heard it."""
    session = store.get(SESSION).decode() if store.check([SESSION]) else ""
    if not session:
        return False
    store.compare_set(f"{session}/objection", "", json.dumps(asdict(problem)))
    verdict = store.get(f"{session}/verdict") if store.check([f"{session}/verdict"]) else b""
    return bool(verdict) and Verdict.from_text(verdict).problem == problem


def is_called_by_the_living(store: Store, lives: Callable[[Record], bool], until: float) -> bool:
    """Return whether the roll is being called in a store, by a process that is seen to live; it may just begin to."""
    while not store.check([SESSION]) and time.monotonic() < until:
        time.sleep(_LONGEST_POLL)
    session = store.get(SESSION).decode() if store.check([SESSION]) else ""
    if not session or store.check([f"{session}/verdict"]):
        return False
    return lives(Record.from_text(store.get(f"{session}/first")))
