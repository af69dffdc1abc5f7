"""Where the ranks of one process group meet: two connections to their store, and what was learned of the others.

One connection waits for the others. The other one looks who is missing meanwhile, and tells what this rank does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing import util
from typing import Any, NamedTuple

from fluxguard.distributed import world
from fluxguard.distributed.meetings import beacon, leftover, records, sight
from fluxguard.distributed.meetings.beacon import Beacon
from fluxguard.distributed.meetings.line import Line, Reply, Store, StoreGone, own_connection
from fluxguard.distributed.meetings.sight import Who, Word
from fluxguard.errors import FluxguardError
from fluxguard.guard import peers

_SWEEP = 64  # meetings whose keys are deleted at once, each by its own rank
_LINGER = 1.0  # at the end of the process with the store, for ranks that have yet to read what it holds
_LINGER_POLL = 0.005  # the others have mostly read it already
_MOMENT = 0.2  # in which the others, whose collective fails at the same time, can say so too
_END = 0.3  # for threads that only have to come out of their queues
_FIRST = 1000  # of all that is done at the end


class Look(NamedTuple):
    """What one look into the store has shown."""

    missing: tuple[int, ...]
    """Who has not come to the meeting."""
    told: dict[int, tuple[Who | None, Word | None]]
    """Who these are, and what they said last."""


class Hall:
    """One process group as a place to meet; `whole` is its store, and `part` what of it is ours."""

    def __init__(self, group: peers.Ranks, connect: Callable[[], Store], name: str = "") -> None:
        """`name` is what its keys begin with, where others lie in the same part of the store."""
        self.group = group
        self._name = name
        self.rank, self.size = group.rank, group.world
        self.longer, self.timeout = group.longer_timeout(), group.timeout()
        """What the group allows a collective; asked for once, because that costs as much as a meeting."""
        self.lock = threading.RLock()
        self.number = 0
        """The number of the next meeting."""
        self.over: FluxguardError | None = None
        """Why no further meeting can come about."""
        self.known: dict[int, Who] = {}
        self._absent: frozenset[int] = frozenset()
        self._waits = Line("fluxguard-meeting", connect)
        self._beacon = Beacon(self.rank)
        self._looks = Line("fluxguard-beacon", connect, self._beacon.tell, beacon.EVERY)

    def come(self, number: int, record: bytes) -> Reply[list[bytes]]:
        """Come to a meeting; the reply holds the records of all ranks, once all have come."""
        keys = [self._key(number, rank) for rank in range(self.size)]
        own = keys[self.rank]

        def job(store: Store) -> list[bytes]:
            store.set(own, record)
            return store.multi_get(keys)

        def after(store: Store) -> None:
            store.set(self._key("read", self.rank), b"%d" % number)
            if number and number % _SWEEP == 0:  # nobody needs those before a meeting to which all have come
                for old in range(number - _SWEEP, number):
                    store.delete_key(self._key(old, self.rank))

        return self._waits.ask(job, after)

    def look(self, number: int, ranks: Iterable[int]) -> Reply[Look]:
        """Look which of `ranks` are missing from a meeting."""

        def job(store: Store) -> Look:
            missing = tuple(rank for rank in ranks if not store.check([self._key(number, rank)]))
            return Look(missing, beacon.hear(store, missing))

        return self._looks.ask(job)

    def hear(self, *, failed: bool) -> Reply[dict[int, tuple[Who | None, Word | None]]]:
        """Return what each of the others has told, apart from any meeting.

        `failed` tells them before that the collective in which this rank is has failed, and gives them a moment to
        tell it, too: what has befallen one has befallen all.
        """

        def job(store: Store) -> dict[int, tuple[Who | None, Word | None]]:
            if failed:
                self._beacon.tell(store, failed=True)
                time.sleep(_MOMENT)
            return beacon.hear(store, [rank for rank in range(self.size) if rank != self.rank])

        return self._looks.ask(job)

    def give_up(self, number: int, record: bytes, missing: Iterable[int]) -> Reply[None]:
        """Put `record` in this rank's place at a meeting and the next, so that whoever comes later does not wait.

        And in that of the missing ones, which wakes those who wait for them.
        """
        self._absent = frozenset(missing)
        return self._put([self._key(number, rank) for rank in (self.rank, *self._absent)], record, number)

    def leave(self, number: int, record: bytes, missing: Iterable[int]) -> Reply[None]:
        """Put `record` in this rank's place at the meeting after this one, to which it will not come."""
        self._absent = frozenset(missing)
        return self._put([], record, number)

    def _put(self, keys: list[str], record: bytes, number: int) -> Reply[None]:
        keys = [*keys, self._key(number + 1, self.rank)]

        def job(store: Store) -> None:
            for key in keys:
                store.set(key, record)

        return self._looks.ask(job)

    def met(self, who: Iterable[bytes]) -> None:
        """Remember which processes the ranks are."""
        known = {rank: sight.unpack_who(data) for rank, data in enumerate(who)}
        self.known.update({rank: one for rank, one in known.items() if one is not None})

    def _key(self, number: int | str, rank: int) -> str:
        return f"{self._name}{number}/{rank}"

    def close(self, farewell: bytes = b"") -> None:
        """Leave it: whoever comes to a further meeting finds the record `farewell` there, and does not wait.

        The rank whose process may hold the store waits a moment until all have read what it holds.
        """
        if farewell and self.over is None:
            self.leave(self.number - 1, farewell, ())
        if self.rank == 0 and self.number:
            with contextlib.suppress(StoreGone):
                self._looks.ask(self._until_all_have_read).within(_LINGER)
        for line in (lines := (self._waits, self._looks)):
            line.end()
        until = time.monotonic() + _END
        for line in lines:
            line.ended(max(0.0, until - time.monotonic()))

    def _until_all_have_read(self, store: Store) -> None:
        until = time.monotonic() + _LINGER
        waiting = [self._key("read", rank) for rank in range(1, self.size) if rank not in self._absent]
        while waiting and time.monotonic() < until:
            come = [key for key in waiting if store.check([key])]
            read = {key for key in come if int(store.multi_get([key])[0]) >= self.number - 1}
            waiting = [key for key in waiting if key not in read]
            time.sleep(_LINGER_POLL if waiting else 0)


class _Here:
    """The hall of this process, and what it is the hall of."""

    def __init__(self) -> None:
        self.hall: Hall | None = None
        self.group: object = None
        self.part: Any = None
        self.lock = threading.RLock()
        self.hooked = False
        self.opened: dict[str, int] = {}
        """How many halls there were in each part of the store."""


_here = _Here()


def hall() -> Hall | None:
    """Return the place where the ranks of this process's group meet; None in a world of one."""
    torch = sys.modules.get("torch.distributed.distributed_c10d")
    group = None if torch is None else torch.GroupMember.WORLD
    if group is None:
        return None
    # A meeting costs no more than a few hundred microseconds: nothing more may be asked of torch each time.
    if _here.group is not group or _here.part is not world.joined.store:
        with _here.lock:
            _open(group)
    return _here.hall


def close(error: BaseException | None = None) -> None:
    """Leave the hall, before its process group is destroyed; without one it does nothing.

    Whoever comes to a further meeting is told at once that this rank has left, and with which error.
    """
    left, _here.hall, _here.group, _here.part = _here.hall, None, None, None
    if left is not None:
        left.close(records.farewell(left.rank, error))


def _open(group: object) -> None:
    close()
    dist = world.group()
    if dist is not None and dist.get_world_size() > 1:
        part, session = world.store(), world.joined.session
        # A group that was destroyed and made again may find what was said in the first one still in its store.
        times = _here.opened[session] = _here.opened.get(session, 0) + 1
        name = f"group {times}/" if times > 1 else ""
        _here.hall = Hall(peers.Ranks(dist), lambda: own_connection(part, session), name)
    _here.group, _here.part = group, world.joined.store
    if not _here.hooked:
        _here.hooked = True
        # Before the interpreter is torn down: a thread that comes back from the store in the midst of that ends badly.
        # At the end of forked ranks, too, which only multiprocessing knows.
        util.Finalize(None, _at_the_end, exitpriority=_FIRST)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)


def _at_the_end() -> None:
    close(getattr(sys, "last_value", None))
    leftover.hold()


def _forget() -> None:
    """In a forked child, which has the connections, but not the threads."""
    _here.hall, _here.group, _here.part, _here.lock = None, None, None, threading.RLock()
