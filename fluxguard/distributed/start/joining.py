"""The beginning and the end of a distributed training: every rank is there and fits, or every rank says why not."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import Any

from fluxguard.distributed import bounded, world
from fluxguard.distributed.start import devices, environment, gate, hearts
from fluxguard.distributed.start.environment import Place
from fluxguard.distributed.start.gate import Asked
from fluxguard.distributed.world import World, joined
from fluxguard.errors import DeadlineExceeded, SetupFailed
from fluxguard.guard import pulse

logger = logging.getLogger(__name__)

_LEAVING = 5.0  # for a process group to be destroyed; then it is left to the end of the process
_FLEEING = 1.0  # the same after a failure, when the other ranks may never answer again


def setup(
    *,
    backend: str | None = None,
    timeout: float | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    init_method: str | None = None,
    store: Any = None,
) -> World:
    """Join the other ranks of this training, check that all of them fit together, and return the world as it is then.

    Under torchrun and `accelerate launch`, before or after `Accelerator()`, it needs no arguments. Under
    `torch.multiprocessing.spawn` it takes `rank` and `world_size`, and `init_method` ("tcp://ADDRESS:PORT",
    "file:///PATH") or a torch `store` where MASTER_ADDR and MASTER_PORT are not set. A process without ranks is a
    world of one, without a process group. `backend` is nccl where there are GPUs, else gloo; `timeout` is that of the
    group in seconds (twice the limit of a barrier, so that the missing are named before torch ends anything).

    It ends within `limits.WaitLimits.setup`, and a few seconds for telling the others. Raises SetupFailed on every
    rank, with the same words where the ranks reach each other: it names the rank, the variable, and what to do.

    Calling it again changes nothing. A process group that somebody else has made is taken as it is, after the same
    roll call. The result can be used as a block, `with setup() as world:`, whose end is `teardown`.
    """
    if joined.world is not None and (joined.world.size == 1 or world.group() is not None):
        return _again(joined.world, rank, world_size)
    if joined.world is not None:  # somebody has destroyed the group behind our back
        leave()
    dist = world.group()
    if dist is not None:
        _refuse_quietly(dist, backend, timeout)
        return _enter(_theirs(), store=world.default_store(dist), theirs=True, backend=str(dist.get_backend()))
    place = _read(rank, world_size, local_rank, init_method, store)
    if place is None:
        pulse.train_begins()
        joined.world = World(host=environment.host())
        return joined.world
    return _enter(place, backend=backend, timeout=timeout, store=store)


def teardown() -> None:
    """Leave the other ranks: what `setup` has made is taken down, within seconds even when the other ranks are gone.

    A process group that somebody else has made stays: whoever has made it ends it. Calling it again changes nothing,
    and neither does calling it before `setup`. Never raises.
    """
    leave()


def leave(error: BaseException | None = None) -> None:
    """See `teardown`; after an error, which the others are told, nothing waits for what they would have to do."""
    ours, known, failed = joined.group_is_ours, joined.world, error is not None
    _close_the_hall(error)
    if known is not None:
        hearts.end(joined.beats, known.rank)
    joined.clear()
    dist = world.group()
    if not ours or dist is None:
        return
    try:
        seconds = _FLEEING if failed else _LEAVING
        bounded.within(seconds, "leaving the process group", lambda: _destroy(dist, failed))
    except (DeadlineExceeded, RuntimeError, ValueError, AssertionError) as error:
        logger.warning("the process group could not be destroyed (%s); it ends with the process", error)


def _destroy(dist: Any, failed: bool) -> None:
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if failed and abort is not None and devices.NCCL in str(dist.get_backend()):
        abort()  # without the other ranks, which an orderly end of NCCL would wait for
    else:
        dist.destroy_process_group()


def _close_the_hall(error: BaseException | None) -> None:
    from fluxguard.distributed.meetings import hall

    if error is not None:
        hall.hall()  # also where there was no meeting yet: the others may have come to the first one
    hall.close(error)


def _again(known: World, rank: int | None, size: int | None) -> World:
    for name, value, own in (("rank", rank, known.rank), ("world_size", size, known.size)):
        if value not in (None, own):
            reason = f"is {value}, but this process was set up with {own}; call teardown() first"
            raise SetupFailed(environment.source(known.rank), reason, name, known.rank)
    return known


def _refuse_quietly(dist: Any, backend: str | None, timeout: float | None) -> None:
    """Warn of what cannot be had any more, because the process group is there already."""
    if timeout is not None or backend not in (None, str(dist.get_backend())):
        logger.warning("the process group was there before setup(): its backend and timeout stay as they are")


def _read(
    rank: int | None, size: int | None, local_rank: int | None, init_method: str | None, store: Any
) -> Place | None:
    try:
        place = environment.read(
            os.environ,
            rank=rank,
            world_size=size,
            local_rank=local_rank,
            init_method=init_method,
            has_store=store is not None,
        )
    except SetupFailed as error:
        logger.error("%s", error)  # before the others are told, which may take seconds
        gate.tell(error, store)
        raise
    if place is not None:
        # Where accelerate and the heartbeat look for them too; arguments are all that multiprocessing.spawn gives.
        for name, value in (("RANK", place.rank), ("WORLD_SIZE", place.size), ("LOCAL_RANK", place.local_rank)):
            if value is not None:
                os.environ.setdefault(name, str(value))
    return place


def _theirs() -> Place:
    here = world.current()
    return Place(rank=here.rank, size=here.size, local_rank=here.local_rank, local_size=here.local_size)


def _enter(
    place: Place,
    *,
    backend: str | None = None,
    timeout: float | None = None,
    store: Any = None,
    theirs: bool = False,
) -> World:
    began = time.monotonic()
    pulse.train_begins()
    who = f"rank {place.rank} of {place.size} on {environment.host()}"
    logger.info("%s sets up: %s", who, environment.told(os.environ))
    found = devices.found()
    chosen = devices.backend(found, os.environ, backend)
    joined.beats = hearts.begin(place.door, place.rank) if place.size > 1 else None
    try:
        with pulse.during("accelerator"):
            made = gate.join(
                Asked(place=place, found=found, backend=chosen, timeout=timeout, store=store, theirs=theirs)
            )
    except BaseException:
        hearts.end(joined.beats, place.rank)
        joined.clear()
        raise
    joined.world = made
    atexit.register(_at_exit)
    on = "the CPU" if made.device is None else f"GPU {made.device}"
    seconds = time.monotonic() - began
    logger.info("%s is set up in %.1f s: %s on %s, timeout %g s", who, seconds, made.backend, on, made.timeout)
    return made


def _at_exit() -> None:
    """Leave what was not left: torch would wait, at the end of the interpreter, for collectives that never end."""
    if joined.world is not None:
        leave(getattr(sys, "last_value", None))
