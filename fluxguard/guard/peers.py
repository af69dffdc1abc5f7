"""The other ranks of a distributed training: who has come to a barrier, and who still shows signs of life.

The ranks meet in the key-value store through which torch.distributed found them, not in a collective: every rank sees
who is missing (of a monitored barrier only rank 0 learns that), nothing has to be created on all ranks first, and no
NCCL timeout runs while a slow rank still works.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fluxguard import heartbeat, limits
from fluxguard.guard import pulse
from fluxguard.limits import WaitLimits

_PREFIX = "fluxguard"
_STEPS = ("", "first step", "step")  # in these every rank does the same, so none may be far behind
_DEAD = ("Z", "X")
_NCCL, _GLOO = 600.0, 1800.0  # what torch allows a collective where it does not say so itself
_BEFORE = 0.95  # of the group's own timeout, which ends a rank without a name
_OVER = -(1 << 40)  # more than any number of ranks: the sum stays negative, however many come too late


class Store(Protocol):
    """What is needed of a torch.distributed store; its `add` returns the new sum, and 0 reads it."""

    def add(self, key: str, amount: int) -> int: ...


class Meeting:
    """One barrier of all ranks in a store."""

    def __init__(self, store: Store, number: int, rank: int, world: int) -> None:
        self._store = store
        self._key = f"barrier/{number}"
        self._rank = rank
        self._world = world

    def arrive(self) -> None:
        """Say that this rank has come."""
        self._store.add(f"{self._key}/{self._rank}", 1)
        self._store.add(self._key, 1)

    def here(self) -> int:
        """Return how many ranks have come; negative when one of them has given the others up."""
        return self._store.add(self._key, 0)

    def complete(self, here: int) -> bool:
        """Return whether these are all."""
        return here >= self._world

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not come."""
        return tuple(rank for rank in range(self._world) if not self._store.add(f"{self._key}/{rank}", 0))

    def give_up(self) -> None:
        """Tell every rank that is here, or comes later, that this barrier is over."""
        self._store.add(self._key, _OVER)


class Sign(NamedTuple):
    """What can be seen of another rank from here: its heartbeat on this machine."""

    beats: int
    phase: str | None
    """Empty when the process behind it is dead; None when it tells of none, so that nobody can say what it does."""


class Signs:
    """When each of the other ranks last showed a sign of life, and how long it may go on without one."""

    def __init__(
        self, look: Callable[[int], Sign | None], allowed: Callable[[str | None], float], since: float
    ) -> None:
        self._look = look
        self._allowed = allowed
        self._since = since
        self._seen: dict[int, tuple[Sign | None, float]] = {}

    def left(self, rank: int, now: float) -> float:
        """Return the seconds for which `rank` may still go on without a sign; 0 or less when it had none too long."""
        sign = self._look(rank)
        last, at = self._seen.get(rank, (sign, self._since))
        if sign is not None and (last is None or last.beats != sign.beats):
            at = now  # only a new beat is a sign of life: a death, or a file that is gone, is none
        self._seen[rank] = sign or last, at
        phase = sign.phase if sign else "" if last else None
        return at + self._allowed(phase) - now


def sign_of(rank: int) -> Sign | None:
    """Return what can be seen of another rank; None without a supervisor, or when it is on another machine."""
    run = pulse.run_dir()
    if run is None:
        return None
    try:
        beat = heartbeat.read(heartbeat.path_for(run.beats(), rank))
    except (OSError, ValueError):
        return None
    return None if beat is None else Sign(beat.beats, beat.phase if _lives(beat.pid) else "")


def _lives(pid: int) -> bool:
    """Return whether a process of this machine lives; True where the platform does not say."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in _DEAD
    except OSError:
        return False


def allowing(limit: float, unseen: float) -> Callable[[str | None], float]:
    """Return how long a rank may be silent in a phase: `limit`, or while it saves or samples what that phase allows.

    `unseen` where nothing was ever seen of it (None): without a supervisor, or on another machine.
    """

    def allowed(phase: str | None) -> float:
        if phase is None:
            return unseen
        if phase in _STEPS:
            return limit
        ceiling = limits.current().for_phase(phase).ceiling
        return math.inf if ceiling is None else max(limit, ceiling)

    return allowed


class Ranks:
    """The default process group as seen from this rank."""

    def __init__(self, dist: Any) -> None:
        self.rank: int = dist.get_rank()
        self.world: int = dist.get_world_size()
        self._dist = dist

    def store(self) -> Store:
        """Return a part of the group's store that nobody else uses."""
        # The only way to it in every torch so far; the group keeps it for the life of the process.
        store: Store = self._dist.PrefixStore(_PREFIX, self._dist.distributed_c10d._get_default_store())
        return store

    def longer_timeout(self) -> float:
        """Return the seconds a user has allowed collectives when that is more than torch's own, else 0.

        Who asks for longer (`--ddp_timeout`) knows that the ranks differ by as much.
        """
        allowed, own = self._timeouts()
        return allowed if allowed > own else 0.0

    def timeout(self) -> float:
        """Return the seconds that this group allows a collective, after which torch ends the process."""
        return self._timeouts()[0]

    def _timeouts(self) -> tuple[float, float]:
        """Return the seconds that this group allows a collective, and what torch allows when nobody asks."""
        own = _NCCL
        try:
            nccl = self._dist.get_backend() == "nccl"
            own = _NCCL if nccl else _GLOO
            c10d = self._dist.distributed_c10d
            default = (getattr(c10d, "default_pg_nccl_timeout", None) if nccl else None) or c10d.default_pg_timeout
            own = float(default.total_seconds())
            device = sys.modules["torch"].device("cuda" if nccl else "cpu")
            asked = c10d._get_default_group()._get_backend(device).options._timeout
            return float(asked.total_seconds()), own
        except (AttributeError, KeyError, RuntimeError, ValueError, TypeError):
            return own, own  # these places are torch's own business and differ between its versions


def ranks() -> Ranks | None:
    """Return the process group of this process, or None where there is none or it has one rank only."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return Ranks(dist)


def patience(limit: float | None, longer: float) -> float:
    """Return how long one rank waits for others; infinite for None."""
    return math.inf if limit is None else max(limit, longer)


def limit_of(longer: float) -> float:
    """Return how long a rank may keep the others waiting; infinite where nobody limits it.

    `longer` is what the user has allowed collectives, when that is more than torch's own.
    """
    return patience(limits.current().wait.barrier, longer)


def signs(
    limit: float,
    timeout: float,
    since: float,
    look: Callable[[int], Sign | None] = sign_of,
    *,
    exact: bool = False,
) -> Signs:
    """Return the signs of life of the others, by which a wait that began at `since` is patient.

    `timeout` is that of the group; `exact` says that somebody has asked for this very limit, so that what cannot be
    seen gets no more.
    """
    # Only a person chooses less than the default, and gets it everywhere; more may have been learned.
    chosen, default = limits.current().wait.barrier or math.inf, WaitLimits().barrier or math.inf
    unseen = limit if exact or chosen < default else unseen_patience(limit, timeout)
    return Signs(look, allowing(limit, unseen), since)


def unseen_patience(limit: float, timeout: float) -> float:
    """Return how long one rank waits for others of which it sees nothing: just until their group would end it.

    Nobody can tell then whether they still cache, hash or sample, and without fluxguard the run would go on.
    """
    return max(limit, _BEFORE * timeout)
