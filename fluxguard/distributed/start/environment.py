"""What the launcher has said about this process: its rank, and where the ranks meet. Pure: an environment goes in."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlparse

from fluxguard.errors import SetupFailed

_TRIGGERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_LAUNCH = "start the training with torchrun or accelerate launch, which set it"
_ELSEWHERE = {  # what other launchers call it
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
}
_LARGEST_PORT = 65535
_TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
_TOLD_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TORCH_DISTRIBUTED_", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one process stands among the ranks, and where they meet."""

    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    address: str = ""
    port: int = 0
    path: str = ""
    """The file in which the ranks meet, instead of an address."""
    by_launcher: bool = False
    """Whether the launcher keeps the store, as torchrun does; else rank 0 does."""
    launched: bool = False
    """Whether a launcher has started the ranks of all machines at once, as torchrun and `accelerate launch` do."""

    @property
    def door(self) -> str:
        """Where the ranks meet, for people."""
        return self.path or f"{self.address}:{self.port}"


def read(
    environment: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    init_method: str | None = None,
    has_store: bool = False,
) -> Place | None:
    """Return what arguments and, where they are silent, the environment say; None for a process without ranks.

    Raises SetupFailed, naming the rank as far as it is known and the variable, for what is missing, no number, out of
    range or contradicts itself. `has_store` says that no address is needed.
    """
    given = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank}
    words = {name: str(value) for name, value in given.items() if value is not None}
    known = {name: value for name, value in environment.items() if value.strip()} | words
    if not has_store and init_method is None and not any(name in known for name in _TRIGGERS):
        return None
    asked = _Asked(known)
    size = asked.number("WORLD_SIZE", least=1)
    one = size == 1 and "RANK" not in known
    own = 0 if one else asked.number("RANK")
    if own >= size:
        raise asked.wrong("RANK", f"is {own}, but WORLD_SIZE is {size}: ranks count from 0 to {size - 1}")
    local, machine = _local(asked, own, size, alone=rank is not None and local_rank is None)
    launched = "TORCHELASTIC_RUN_ID" in known
    place = Place(rank=own, size=size, local_rank=local, local_size=machine, launched=launched)
    if size == 1 or has_store:
        return place
    return _at(asked, place, init_method or "env://")


def door(environment: Mapping[str, str], rank: int | None) -> Place | None:
    """Return where the others meet, for a process that cannot join them; None where that is not known either.

    A rank that is not known is -1, and a number of ranks that is not known the least that makes sense.
    """
    asked = _Asked({name: value for name, value in environment.items() if value.strip()})
    own = -1 if rank is None else rank
    try:
        size = asked.number("WORLD_SIZE", least=1)
    except SetupFailed:
        size = max(2, own + 1)
    try:
        return _at(asked, Place(rank=own, size=size), "env://")
    except SetupFailed:
        return None


def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def source(rank: int | None, machine: str | None = None, pid: int | None = None) -> str:
    """Return how a rank is called in messages; None where its number is not known."""
    where = host() if machine is None else machine
    return f"process {pid or os.getpid()} on {where}" if rank is None else f"rank {rank} on {where}"


def told(environment: Mapping[str, str]) -> str:
    """Return the variables that matter between ranks, as they are set, for a line of the log."""
    names = [name for name in _TOLD if name in environment]
    names += sorted(name for name in environment if name.startswith(_TOLD_PREFIXES))
    return " ".join(f"{name}={environment[name]}" for name in names) or "no variables of a launcher"


class _Asked:
    """An environment that is asked for numbers, and remembers whose it is once the rank is known."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known
        rank = known.get("RANK", "").strip()
        self.rank = int(rank) if rank.isascii() and rank.isdigit() else None

    def wrong(self, name: str, reason: str) -> SetupFailed:
        return SetupFailed(source(self.rank), reason, name, self.rank)

    def number(self, name: str, least: int = 0) -> int:
        text = self.known.get(name, "").strip()
        if not text:
            raise self.wrong(name, f"is missing; {self._advice(name)}")
        try:
            value = int(text)
        except ValueError:
            raise self.wrong(name, f"is {text!r}, which is no whole number; {self._advice(name)}") from None
        if value < least:
            raise self.wrong(name, f"is {value}, but must be {least} or more")
        return value

    def perhaps(self, name: str, least: int = 0) -> int | None:
        return self.number(name, least) if self.known.get(name, "").strip() else None

    def _advice(self, name: str) -> str:
        for other in _ELSEWHERE.get(name, ()):
            if other in self.known:
                return f"{other} is set: export {name}=${other}, or {_LAUNCH}"
        return _LAUNCH


def _local(asked: _Asked, rank: int, size: int, *, alone: bool) -> tuple[int | None, int | None]:
    machine = asked.perhaps("LOCAL_WORLD_SIZE", least=1)
    local = asked.perhaps("LOCAL_RANK")
    if local is None and alone:  # torch.multiprocessing.spawn: one machine, whose ranks are given as arguments
        local, machine = rank, machine or size
    if machine is not None and machine > size:
        raise asked.wrong("LOCAL_WORLD_SIZE", f"is {machine}, but there are only {size} ranks in all (WORLD_SIZE)")
    if local is not None and local >= (machine or size):
        name, bound = ("LOCAL_WORLD_SIZE", machine) if machine else ("WORLD_SIZE", size)
        raise asked.wrong("LOCAL_RANK", f"is {local}, but {name} is {bound}: local ranks count from 0 on each machine")
    return local, machine


def _at(asked: _Asked, place: Place, method: str) -> Place:
    url = urlparse(method)
    if url.scheme == "file" and url.path:
        return _with(place, path=url.netloc + url.path)
    if url.scheme == "tcp":
        try:
            port = url.port
        except ValueError:
            port = None
        if not url.hostname or not port:
            raise asked.wrong("init_method", f"is {method!r}, which names no address and port (tcp://ADDRESS:PORT)")
        return _with(place, address=url.hostname, port=port)
    if url.scheme != "env":
        raise asked.wrong("init_method", f"is {method!r}; use tcp://ADDRESS:PORT, file:///PATH or env://")
    address = asked.known.get("MASTER_ADDR", "").strip()
    if not address:
        raise asked.wrong("MASTER_ADDR", f"is missing: set it to the address of rank 0's machine, or {_LAUNCH}")
    port = asked.number("MASTER_PORT", least=1)
    if port > _LARGEST_PORT:
        raise asked.wrong("MASTER_PORT", f"is {port}, but ports end at {_LARGEST_PORT}")
    by_launcher = asked.known.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    return _with(place, address=address, port=port, by_launcher=by_launcher)


def _with(place: Place, **where: object) -> Place:
    return Place(**{**vars(place), **where})
