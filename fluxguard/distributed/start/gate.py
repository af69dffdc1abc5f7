"""What may block while ranks find each other: the store, the roll call, the process group; all of it bounded."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fluxguard import limits
from fluxguard.distributed import bounded, world
from fluxguard.distributed.start import assembly, devices, environment, presence, reaching
from fluxguard.distributed.start.assembly import Call, Verdict
from fluxguard.distributed.start.devices import Found
from fluxguard.distributed.start.environment import Place
from fluxguard.distributed.start.patience import Patience
from fluxguard.distributed.start.rollcall import Problem, Record
from fluxguard.distributed.world import World, joined
from fluxguard.errors import DeadlineExceeded, SetupFailed
from fluxguard.guard.peers import Ranks

logger = logging.getLogger(__name__)

HANGS = (
    "the ranks meet, but their collectives do not work: run again with NCCL_DEBUG=INFO, and try NCCL_P2P_DISABLE=1, "
    "NCCL_IB_DISABLE=1 or the name of the right network interface in NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME for gloo)"
)
"""What to do about collectives that hang between ranks who have found each other."""

_CALL, _GROUP = "rollcall", "group"
_TELLING = 10.0  # for a rank that knows what is wrong with itself to find the others
_OPENING = 3.0  # for another rank 0 on this machine, between its port and its session
_ANSWER, _ITS_SHARE = 2.0, 0.1  # of the limit, at its end, in which who is missing is told to all
_BARRIERS = 2.0  # the timeout of a group, in limits of a barrier: who is missing has been said long before


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be joined."""

    place: Place
    found: Found
    backend: str
    timeout: float | None = None
    """Seconds; None for what fits the limits."""
    store: Any = None
    """A store of torch that the ranks share already."""
    theirs: bool = False
    """Whether somebody else has made the process group."""


def join(asked: Asked) -> World:
    """Return the world, once all ranks have agreed on it. Raises SetupFailed, within the limit and a few seconds."""
    going = _Going(asked)
    try:
        made = bounded.within(_limit(), "set up", going.on, going.more)
    except DeadlineExceeded:
        raise going.stuck() from None
    # Here and not on the way, which may go on in its thread after it was given up.
    joined.session, joined.store = going.session, going.part
    joined.group_is_ours = not asked.theirs
    devices.use(made.device)  # in this thread, too: CUDA keeps it for each
    return made


def tell(error: SetupFailed, store: Any) -> None:
    """Tell the other ranks what is wrong with this one, as far as it is known where they meet. Never raises."""
    place = environment.door(os.environ, error.rank)
    if store is None and place is None:
        return
    seconds = min(_limit(), _TELLING)
    with contextlib.suppress(SetupFailed, DeadlineExceeded, RuntimeError, OSError, ValueError):
        bounded.within(seconds, "telling the other ranks", lambda: _complain(error, place, store, seconds))


def _complain(error: SetupFailed, place: Place | None, store: Any, seconds: float) -> None:
    import torch.distributed as dist

    began = time.monotonic()
    whole = store if store is not None or place is None else reaching.reach(dist, place, began + seconds)
    part = world.part(dist, whole, _CALL)
    if place is None or place.rank < 0:
        assembly.complain(part, Problem.of(error), began + seconds)
        return
    record = Record(rank=place.rank, size=place.size, nonce=uuid.uuid4().hex, host=environment.host(), pid=os.getpid())
    call = Call(part, record, word=uuid.uuid4().hex, limit=seconds, began=began, own=Problem.of(error))
    assembly.attend(call)


def _limit() -> float:
    limit = limits.current().wait.setup
    return math.inf if limit is None else limit


class _Going:
    """One rank on its way to the others."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._place = asked.place
        self._began = time.monotonic()
        limit = _limit()
        self._telling = 0.0 if limit == math.inf else min(_ANSWER, _ITS_SHARE * limit)
        self._limit = limit - self._telling
        longest = max(limit, _timeout(asked.timeout) or math.inf)
        self._patience = Patience(asked.place, self._limit, longest, self._began)
        self._stuck = reaching.slow(asked.place)
        self._problem: Problem | None = None
        self._said = False
        self.session = ""
        self.part: world.Store | None = None

    def on(self) -> World:
        """Go the whole way."""
        import torch.distributed as dist

        place, device, wrong = self._place, None, None
        try:
            device = self._device()
            devices.use(device)
        except SetupFailed as error:
            wrong = Problem.of(error)
        try:
            whole = self._store(dist)
            self._tell(reaching.silent(place))
            if place.size > 1:
                self._roll_call(dist, whole, device, wrong)
            elif wrong is not None:
                raise wrong.error()
        except RuntimeError as error:
            raise self.stuck() if self._problem else reaching.lost(place, error) from None
        if not self._asked.theirs:
            self._connect(dist, whole)
        return self._world(dist, device)

    def more(self) -> float:
        """Return for how many seconds more the way may take, because ranks that are slow are waited for."""
        return self._patience.until + self._telling - time.monotonic()

    def stuck(self) -> SetupFailed:
        """Return the error for a way that has taken too long."""
        return self._stuck if self._problem is None else self._problem.error()

    def _tell(self, error: SetupFailed) -> None:
        self._stuck = error

    def _reaches(self, error: SetupFailed) -> None:
        """Know what would be wrong if it went no further than to the store."""
        self._tell(error)
        if time.monotonic() - self._began >= assembly.SAID_AFTER:
            self._awaits(f"an answer: {error}")

    def _awaits(self, what: str) -> None:
        """Say once for what this rank waits."""
        if not self._said:
            self._said = True
            waited = time.monotonic() - self._began
            logger.warning("rank %d has waited %.0f s for %s", self._place.rank, waited, what)

    def _knows(self, problem: Problem) -> None:
        self._problem = problem

    def _device(self) -> int | None:
        if self._asked.theirs:
            return world.current().device
        place = self._place
        return devices.device(self._asked.found, self._asked.backend, os.environ, place.rank, place.local_rank)

    def _store(self, dist: Any) -> Any:
        if self._asked.store is not None:
            return self._asked.store
        if self._place.size == 1:
            return dist.HashStore()
        until = self._began + self._limit
        return reaching.reach(dist, self._place, until, self._is_ours, self._reaches, lambda: self._patience.more([0]))

    def _is_ours(self, whole: Any) -> bool:
        import torch.distributed as dist

        until = time.monotonic() + min(_OPENING, self._limit / 2)
        return assembly.is_called_by_the_living(world.part(dist, whole, _CALL), presence.lives, until)

    def _roll_call(self, dist: Any, whole: Any, device: int | None, wrong: Problem | None) -> None:
        place, asked = self._place, self._asked
        call = Call(
            world.part(dist, whole, _CALL),
            presence.own(place, asked.found, asked.backend, device),
            word=uuid.uuid4().hex,
            limit=self._patience.until - self._began if wrong is None else min(self._limit, _TELLING),
            began=self._began,
            door=place.door,
            own=wrong,
            notes=reaching.not_ours(place) if place.rank == 0 else "",
            lives=presence.lives,
            more=self._patience.more,
            awaited=self._awaits,
        )
        verdict = assembly.attend(call, self._knows)
        if verdict.problem is not None:
            raise verdict.problem.error()
        for remark in call.remarks:
            logger.warning("%s", remark)
        self._patience.complete()
        self._verdict = verdict
        self.session = verdict.session
        self.part = world.part(dist, whole, verdict.session)

    _verdict = Verdict()

    def _connect(self, dist: Any, whole: Any) -> None:
        place, backend = self._place, self._asked.backend
        self._tell(reaching.unconnected(place, backend, "no connection in time"))
        timeout = _timeout(self._asked.timeout)
        try:
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"{self.session}/{_GROUP}", whole),
                rank=place.rank,
                world_size=place.size,
                **({} if timeout is None else {"timeout": timedelta(seconds=timeout)}),
            )
        except RuntimeError as error:
            raise reaching.unconnected(place, backend, reaching.first_line(error)) from error

    def _world(self, dist: Any, device: int | None) -> World:
        place, machines = self._place, self._verdict.machines or (0,)
        here = [rank for rank, machine in enumerate(machines) if machine == machines[place.rank]]
        return World(
            rank=place.rank,
            local_rank=here.index(place.rank) if place.local_rank is None else place.local_rank,
            size=place.size,
            local_size=len(here) if place.local_size is None else place.local_size,
            host=environment.host(),
            backend=self._asked.backend,
            device=device,
            timeout=Ranks(dist).timeout(),
        )


def _timeout(asked: float | None) -> float | None:
    if asked is not None:
        return asked
    barrier = limits.current().wait.barrier
    return None if barrier is None else _BARRIERS * barrier
