"""Waits of one rank for the others: a barrier that names who did not come, and collectives that end in bounded time."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol, TypeVar

from fluxguard.errors import RanksMissing
from fluxguard.guard import deadlines, peers, pulse
from fluxguard.guard.collectives import noted
from fluxguard.guard.ending import Verdict, end_process
from fluxguard.guard.watcher import Wait, awake, lost, watcher

F = TypeVar("F", bound=Callable[..., Any])

_WHAT = "barrier"
_FIRST_POLL, _LONGEST_POLL = 0.0005, 0.1
_LOOKS = 10  # at signs of life, within one limit
_STORE = 1.0  # what the store may take to say who is missing; behind that the process ends without the names
_TELLING = 0.3  # a few polls, in which the others learn whom to name, before launchers end them all
_numbers = itertools.count()


class _Waiter(Protocol):
    def wait_for_everyone(self) -> object: ...


def barrier(accelerator: _Waiter | None = None) -> None:
    """Wait until every rank has come here, as `accelerator.wait_for_everyone()` does (None: torch's own barrier).

    A rank that does not come for the limit of a barrier ends the trainer on every rank that has, each naming the
    missing ones; in another process it raises RanksMissing. A rank of this machine whose heartbeat goes on is late,
    not missing; one of which nothing can be seen gets almost the timeout of the group itself. It never tries again.
    With one process, or after the process group was destroyed, it is the accelerator's own wait and nothing else.
    """
    group = peers.ranks()
    limit = None if group is None else _limit(group)
    with contextlib.nullcontext() if group is None else noted(_WHAT, _place()):
        if group is not None and limit is not None:
            _meet(group, limit)
        with _bounded(_WHAT, limit):  # everyone is here, so this ends at once; it keeps what the caller asked for
            _own(accelerator)


def _place() -> str:
    """Return the line that has called `barrier`."""
    frame = sys._getframe(2)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def collective(function: F) -> F:
    """Bound a function that waits for other ranks; above its definition, or around it in a call.

    In a trainer with several ranks a call that lasts longer than the limit of a barrier ends the process, naming the
    function and this rank. It adds no synchronisation: a collective of NCCL returns at once and is waited for where
    its outcome is used, which this does not see. So it bounds what blocks in the call itself: gloo, object
    collectives, the first call that connects the ranks.
    """

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        group = peers.ranks()
        if group is None:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "collective")
        what = f"{name} on rank {group.rank} of {group.world}"
        with noted("collective", name), _Collective(what, _limit(group), group):
            return function(*args, **kwargs)

    return bounded  # type: ignore[return-value]


class _Collective:
    """A collective of one rank, whose limit begins anew while another rank saves, samples or shows a sign of life."""

    def __init__(self, what: str, limit: float | None, group: peers.Ranks) -> None:
        self._what = what
        self._others = [rank for rank in range(group.world) if rank != group.rank]
        self._wait: Wait | None = None
        if limit is not None and pulse.begun():
            self._signs = peers.signs(limit, group.timeout(), awake())
            now = time.monotonic()
            self._wait = Wait(what, limit, now, self._due, True)
            self._look = Wait(what, limit / _LOOKS, now, self._looks, False)

    def __enter__(self) -> None:
        if self._wait is not None:
            watcher().open(self._look)
            watcher().open(self._wait)

    def __exit__(self, *_: object) -> None:
        if self._wait is not None:
            watcher().close(self._wait)
            watcher().close(self._look)

    def _left(self) -> float:
        now = awake()
        return max([self._signs.left(rank, now) for rank in self._others])

    def _looks(self, wait: Wait) -> float:
        self._left()
        return wait.limit

    def _due(self, wait: Wait) -> float:
        if (left := self._left()) > 0:
            return min(left, wait.limit)
        waited = time.monotonic() - wait.since
        end_process(Verdict(what=self._what, cause=_WHAT, limit=wait.limit, waited=waited))


def _own(accelerator: _Waiter | None) -> None:
    if accelerator is not None:
        accelerator.wait_for_everyone()
        return
    import torch.distributed as dist

    dist.barrier()


def _limit(group: peers.Ranks) -> float | None:
    seconds = peers.limit_of(group.longer_timeout())
    return None if seconds == math.inf else seconds


@contextlib.contextmanager
def _bounded(what: str, limit: float | None) -> Iterator[None]:
    if limit is None:
        yield
        return
    with deadlines.exit_after(limit, what, _WHAT, backed=False):
        yield


def _meet(group: peers.Ranks, limit: float) -> None:
    meeting = peers.Meeting(group.store(), next(_numbers), group.rank, group.world)
    began = time.monotonic()
    awake_at, slept = awake(), lost()

    def no_answer(wait: Wait) -> None:
        _give_up((), f"{_WHAT} (the store of the ranks, on rank 0's machine, does not answer)", limit, began)

    # It only falls due when the store itself blocks; what follows gives up before.
    behind = Wait(_WHAT, limit + _STORE, began, no_answer, pulse.begun())
    if behind.fatal:
        watcher().open(behind)
    try:
        missing = _Waiting(group, meeting, limit, behind).until_complete()
    except RuntimeError:  # torch's, for a connection that is gone; an error of our own is none
        _give_up((0,), f"{_WHAT} (the store of the ranks, in rank 0 or its launcher, is gone)", limit, began)
    finally:
        if behind.fatal:
            watcher().close(behind)
    if missing:
        _give_up(missing, f"{_WHAT} ({_named(missing)})", limit, began)
    waited = awake() - awake_at
    if waited <= limit and lost() == slept:  # a longer one was allowed by what was seen of the others, not by its limit
        pulse.completed("barrier", waited)


class _Waiting:
    """One rank that waits at one meeting."""

    def __init__(self, group: peers.Ranks, meeting: peers.Meeting, limit: float, behind: Wait) -> None:
        self._meeting = meeting
        self._limit = limit
        self._behind = behind
        now = awake()
        self._look_at = now + limit / _LOOKS
        self._signs = peers.signs(limit, group.timeout(), now)

    def until_complete(self) -> tuple[int, ...]:
        """Return once all are here (nobody is missing) or it makes no sense to wait longer (these are)."""
        meeting, poll = self._meeting, _FIRST_POLL
        meeting.arrive()
        while not meeting.complete(here := meeting.here()):
            if here < 0:  # another rank has waited longer, and says that it was too long
                return meeting.missing() or ALL_CAME_LATE
            now = awake()
            if now >= self._look_at and (missing := self._given_up(now)):
                meeting.give_up()
                time.sleep(_TELLING)
                return missing
            deadlines.check()
            time.sleep(poll)
            poll = min(2 * poll, _LONGEST_POLL)
        return ()

    def _given_up(self, now: float) -> tuple[int, ...]:
        missing = self._meeting.missing()
        left = min((self._signs.left(rank, now) for rank in missing), default=self._limit)
        if left <= 0:
            return missing
        self._look_at = now + min(left, self._limit / _LOOKS)
        self._behind.at = time.monotonic() + min(left, self._limit) + _STORE
        return ()


ALL_CAME_LATE = (-1,)
"""Stands for the missing ranks when none is missing any more: the last one came after the barrier was given up."""


def _named(missing: tuple[int, ...]) -> str:
    if missing == ALL_CAME_LATE:
        return "the last rank came after the others had given it up"
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} did not come"


def _give_up(missing: tuple[int, ...], what: str, limit: float, began: float) -> NoReturn:
    if pulse.begun():
        end_process(Verdict(what=what, cause=_WHAT, limit=limit, waited=time.monotonic() - began))
    raise RanksMissing(what, limit, missing)
