"""States of a distributed training: all that an exact resume needs, the same on every rank, whole or not there."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxguard.distributed import world
from fluxguard.distributed.meetings import hearing, meeting
from fluxguard.distributed.models import seeds, weights, wrapping
from fluxguard.distributed.models.sampling import batch_after
from fluxguard.distributed.saving import agreeing, places, plain, sealing
from fluxguard.errors import InputError, StateUnusable
from fluxguard.guard import pulse
from fluxguard.guard.randoms import random_states, restore

logger = logging.getLogger(__name__)

newest_state = agreeing.newest_state

_SAVE, _LOAD = "save_state", "load_state"
_KEY = "state/{}"
_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")
_ALWAYS = {"batch_size", "model", "values"}
_LARGEST = 1 << 20  # bytes of what one rank keeps for itself: it travels through the store


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a training begins or goes on; all 0 where there was no state."""

    step: int = 0
    """Optimizer steps embodied in the weights."""
    epoch: int = 0
    """The epoch to go on in, counted from 0."""
    batch: int = 0
    """Batches of that epoch that each rank has trained, in batches of this world."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was given to `save_state` under that name, on rank 0."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The same for this rank alone; empty for a rank that there was not."""
    exact: bool = True
    """Whether this rank's random numbers go on as they would have. False in a world of another size."""


def save_state(
    folder: str | os.PathLike[str],
    *,
    step: int,
    epoch: int,
    batch: int,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    sampler: Any = None,
    values: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
    keep: int | None = 3,
) -> Path:
    """Save a state called step-NNNNNNNN in `folder` and return its path; called by every rank, between two steps.

    `step` counts the optimizer steps of all attempts, `epoch` from 0, `batch` the batches of that epoch that each rank
    has trained. What all ranks have alike is written once per disk: weights, optimizer, scheduler, scaler (whatever
    has a `state_dict` of tensors and plain values), and `values` of rank 0. Of each rank: its random states, and `own`
    (plain values). `sampler` (ours, or anything with a `batch_size`) makes the position good for other numbers of
    ranks. Under the name there is then a whole state or, after a kill or an error, what was there before. Of the states
    that this function made in `folder` the newest `keep` are kept, all of them with None.

    Raises InputError for what a state cannot hold, and OSError (a full disk); RankFailed on the other ranks.
    """
    place = Path(folder).absolute()
    state = sealing.path_of(place, step)
    with pulse.during("saving"):
        here = world.current()
        with hearing.together(_SAVE, step=step):
            _refuse_sharded(wrapping.bare(model))
            _offer(_record(own), here.rank)
            known = _position(step, epoch, batch, here.size)
            batch_size = int(getattr(sampler, "batch_size", 0) or 0)
            kept = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
            trainer = {
                "batch_size": batch_size,
                "values": dict(values or {}),
                **{name: one.state_dict() for name, one in kept.items() if one is not None},
            }
        writer = places.writer_of(place) == here.rank
        trainer["identity"] = meeting.meet(_SAVE, "identity", payload=sealing.new_identity().encode())[0].decode()
        try:
            with hearing.together(f"{_SAVE}: writing", step=step):
                if writer:
                    sealing.write(state, lambda partial: _fill(partial, model, trainer, here.size), known)
        except BaseException:
            if writer:
                sealing.discard(state)
            raise
        with hearing.together(f"{_SAVE}: renaming", step=step):
            if writer:
                sealing.publish(state)
        if writer and keep is not None:
            sealing.retain(place, state, keep)
    return state


def _refuse_sharded(model: Any) -> None:
    """Raise InputError for a model of which each rank holds a part: one rank alone cannot write it."""
    parts = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    if parts or any(type(module).__name__ in _SHARDED for module in model.modules()):
        raise InputError(
            "model", "is spread over the ranks (FSDP, DeepSpeed): save it with torch.distributed.checkpoint"
        )


def _position(step: int, epoch: int, batch: int, size: int) -> dict[str, Any]:
    for name, value in (("step", step), ("epoch", epoch), ("batch", batch)):
        if not isinstance(value, int) or value < 0:
            raise InputError(_SAVE, f"must be a whole number of at least 0, not {value!r}", name)
    return {"true_step": step, "epoch": epoch + 1, "batch": batch, "world_size": size, "attempt": pulse.attempt()}


def _record(own: Mapping[str, Any] | None) -> bytes:
    text = plain.text_of({"random": random_states(), "own": dict(own or {})}, "own").encode()
    if len(text) > _LARGEST:
        raise InputError("own", f"is {len(text)} bytes as text; more than {_LARGEST} do not fit")
    return text


_alone: dict[str, bytes] = {}


def _offer(record: bytes, rank: int) -> None:
    """Give the record of this rank to whoever writes; some 20 kB, in the same place each time."""
    store = world.store()
    if store is None:
        _alone[_KEY.format(rank)] = record
    else:
        store.set(_KEY.format(rank), record)


def _offered(rank: int) -> bytes:
    store = world.store()
    return _alone[_KEY.format(rank)] if store is None else bytes(store.get(_KEY.format(rank)))


def _fill(partial: Path, model: Any, trainer: dict[str, Any], size: int) -> None:
    import safetensors.torch

    state = wrapping.bare(model).state_dict()
    tensors = {name: value for name, value in state.items() if hasattr(value, "untyped_storage")}
    trainer["model"] = {name: value for name, value in state.items() if name not in tensors}
    safetensors.torch.save_file(plain.separate(tensors.items()), partial / sealing.MODEL)
    plain.write(partial / sealing.TRAINER, trainer)
    for rank in range(size):
        (partial / sealing.RANK.format(rank)).write_bytes(_offered(rank))


def load_state(
    state: str | os.PathLike[str] | None,
    *,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    sampler: Any = None,
) -> Resumed:
    """Load a state on every rank and return where to go on; with None, as `newest_state` returns it, where to begin.

    Nothing is unpickled. A state that another number of ranks has saved is taken too: with our `sampler` each further
    step has the very samples it would have had, and only random numbers that a rank draws for itself are new ones
    (`exact` is then False, with a warning). Without a sampler that is possible at the beginning of an epoch only.

    Raises StateUnusable for a state that is damaged, InputError when it does not fit model, optimizer or world; on
    ranks where all is well RankFailed. A training whose load failed must not go on.
    """
    if state is None:
        return Resumed()
    folder = Path(state).absolute()
    here = world.current()
    with pulse.during("resume"):
        agreeing.verify(folder)
        known = sealing.glance(folder)
        with hearing.together(f"{_LOAD}: {folder.name}"):
            trainer = _read(folder)
            batch = _batch(folder, known.batch, known.world_size, trainer["batch_size"], sampler)
            _give(folder, trainer, wrapping.bare(model), optimizer, scheduler, scaler)
            own, exact = _restore(folder, known.world_size == here.size, known.true_step)
            if hasattr(sampler, "go_on"):
                sampler.go_on(known.epoch - 1, batch)
    return Resumed(
        step=known.true_step, epoch=known.epoch - 1, batch=batch, values=trainer["values"], own=own, exact=exact
    )


def _read(folder: Path) -> dict[str, Any]:
    import safetensors

    try:
        trainer = plain.read(folder / sealing.TRAINER)
        if lacking := _ALWAYS - trainer.keys():
            raise ValueError(f"lacks {min(lacking)}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise StateUnusable(folder, f"{sealing.TRAINER} cannot be read ({error})") from error
    return trainer


def _batch(folder: Path, batch: int, ranks: int, batch_size: int, sampler: Any) -> int:
    """Return how many batches of this world's are what `ranks` ranks had trained of the epoch. Raises InputError."""
    here = world.current().size
    now = int(getattr(sampler, "batch_size", 0) or 0)
    if not batch or (ranks == here and now in (0, batch_size)):
        return batch
    if not batch_size or not now:
        why = f"was saved by {ranks} ranks within an epoch, here are {here}"
        raise InputError(folder, f"{why}: only a sampler of ours, given to save_state and load_state, can go on there")
    there = batch_after(batch * batch_size * ranks, now, here)
    if there is None:
        why = f"stands at sample {batch * batch_size * ranks} of its epoch"
        raise InputError(folder, f"{why}, where {here} ranks with batches of {now} have no beginning of a batch")
    return there


def _give(folder: Path, trainer: dict[str, Any], model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    tensors = weights.read(folder / sealing.MODEL)
    weights.fit(model, {**tensors, **trainer["model"]}, folder / sealing.MODEL)
    for name, one in (("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
        if one is None and name in trainer:
            logger.warning("%s: %s of the state is not asked for", _LOAD, name)
        if one is None:
            continue
        if name not in trainer:
            raise InputError(folder, f"holds no {name}")
        try:
            one.load_state_dict(trainer[name])
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise InputError(folder, f"its {name} does not fit ({error})") from error


def _restore(folder: Path, same_size: bool, step: int) -> tuple[dict[str, Any], bool]:
    """Set the random states of this rank, and return what it kept for itself and whether these are those of before."""
    rank = world.current().rank
    path = folder / sealing.RANK.format(rank)
    if not same_size:
        logger.warning("%s: another number of ranks: what each draws for itself (dropout, noise) is new", _LOAD)
        seeds.reseed(world.current().size, step)
        return {}, False
    try:
        record = plain.values_of(path.read_bytes())
        restore(record["random"])
        own: dict[str, Any] = record["own"]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise StateUnusable(folder, f"{path.name} cannot be read ({type(error).__name__}: {error})") from error
    return own, True
