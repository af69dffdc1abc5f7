"""Which rank this process is, among how many, on which device; and the part of the ranks' store that is ours."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from fluxguard.guard import pulse
from fluxguard.guard.peers import Ranks

_PREFIX = "fluxguard"


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of one training as seen from one of them; as a block, `with setup() as world:`, it ends with it."""

    rank: int = 0
    local_rank: int = 0
    """The number of this rank on its machine."""
    size: int = 1
    local_size: int = 1
    """How many of the ranks are on this machine."""
    host: str = ""
    backend: str = ""
    """What carries the collectives: "nccl", "gloo" or what was asked for; empty in a world of one without a group."""
    device: int | None = None
    """The number of the GPU of this rank, as torch counts those it sees; None on a CPU."""
    timeout: float = 0.0
    """Seconds after which torch itself ends a collective; 0 without a group."""

    @property
    def main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        from fluxguard.distributed.models import gradients
        from fluxguard.distributed.start import joining

        try:
            gradients.explain(error)
        except BaseException as better:
            error = better
            raise
        finally:
            joining.leave(error)


class Store(Protocol):
    """What is used of a torch.distributed store. Its values are bytes; `get` and `wait` wait for a key."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool: ...

    def wait(self, keys: list[str]) -> None: ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class _Joined:
    """What `setup` has made in this process; empty before it and after `teardown`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget it all."""
        self.world: World | None = None
        self.store: Store | None = None
        self.session = ""
        self.beats: Path | None = None
        self.group_is_ours = False


joined = _Joined()


def current() -> World:
    """Return the world as `setup` has made it, else as the process group of somebody else is, else a world of one.

    Never waits and never raises. After `teardown` every process is a world of one.
    """
    if joined.world is not None:
        return joined.world
    dist = group()
    if dist is None:
        return World(host=socket.gethostname())
    backend = str(dist.get_backend())
    rank, size = int(dist.get_rank()), int(dist.get_world_size())
    return World(
        rank=rank,
        local_rank=_number("LOCAL_RANK", 0 if size == 1 else rank),
        size=size,
        local_size=_number("LOCAL_WORLD_SIZE", size),
        host=socket.gethostname(),
        backend=backend,
        device=int(sys.modules["torch"].cuda.current_device()) if "nccl" in backend else None,
        timeout=Ranks(dist).timeout(),
    )


def store() -> Store | None:
    """Return the part of the ranks' store that is private to us; None in a world of one.

    What an earlier round of an elastic launcher has left in the store is not in it, once `setup` was called: the part
    is named by a word that the ranks have agreed on in this round. (torchrun keeps one store over all its rounds, and
    its count of restarts can differ between machines and stay the same when one of them joins.)
    """
    if joined.store is not None:
        return joined.store
    dist = group()
    if dist is None or dist.get_world_size() < 2:
        return None
    return part(dist, default_store(dist), "")


def part(dist: Any, whole: Any, name: str) -> Store:
    """Return a part of a store that nobody else uses."""
    return cast("Store", dist.PrefixStore(f"{_PREFIX}/{name}" if name else _PREFIX, whole))


def default_store(dist: Any) -> Any:
    """Return the store of the default process group."""
    return dist.distributed_c10d._get_default_store()  # the only way to it in every torch so far


def group() -> Any | None:
    """Return torch.distributed when this process has a default process group, else None; imports nothing."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def beats() -> Path | None:
    """Return the folder of the heartbeats of this machine's ranks; None when none are written.

    It is the supervisor's, else one in memory that `setup` has made for this job.
    """
    run = pulse.run_dir()
    return joined.beats if run is None else run.beats()


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else otherwise
