"""Weights that every rank begins with: read or made on rank 0, and the same everywhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxguard.distributed.meetings import decisions, hearing
from fluxguard.distributed.models import likeness, seeds
from fluxguard.errors import InputError
from fluxguard.guard import peers

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

logger = logging.getLogger(__name__)

_NAME = "load_or_init"
_BUILD, _ERROR = "build", "error"
_SAFETENSORS = ".safetensors"
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, EOFError, AttributeError)


def load_or_init(
    path: str | os.PathLike[str] | None, build: Callable[[], Module], *, missing: str = _BUILD, broken: str = _ERROR
) -> Module:
    """Return the model that `build` makes, with the weights of the file at `path`, the same on every rank.

    Only rank 0 reads, so the file needs to be on its machine alone; `build` runs on every rank, after `seed` with the
    same random numbers on each. Without the file rank 0's new weights are everybody's (`missing="error"`: an error
    instead); `path` is None where there is none. A file that is broken or does not fit is an error (`broken="build"`:
    a warning, and new weights). A .safetensors file or one that torch.load(weights_only=True) reads, holding a
    state_dict; nothing is unpickled.

    Raises on rank 0 InputError naming the file, on every other rank RankFailed; whatever `build` raises on any rank is
    heard by all in the same way.
    """
    for name, value in (("missing", missing), ("broken", broken)):
        if value not in (_BUILD, _ERROR):
            raise InputError(name, f"{value!r} is neither {_BUILD!r} nor {_ERROR!r}")
    if path is None and missing == _ERROR:
        raise InputError("path", f"is None, but missing={_ERROR!r} asks for a file")
    file = None if path is None else Path(path)
    with hearing.together(_NAME), seeds.alike():
        model = build()
    found = decisions.decide(lambda: _fill(model, file, missing, broken), _NAME)
    if not found:
        logger.info("%s: new weights", _NAME)
    likeness.compare(model, _NAME, values=False)
    share(model)
    return model


def _fill(model: Module, file: Path | None, missing: str, broken: str) -> bool:
    """Load a file into a model and return whether that was done."""
    if file is None or not os.path.lexists(file):
        if missing == _ERROR:
            raise InputError(file, "is not there")
        return False
    try:
        fit(model, read(file), file)
    except InputError as error:
        if broken == _ERROR:
            raise
        logger.warning("%s; new weights are used", error)
        return False
    return True


def read(file: Path) -> dict[str, Tensor]:
    """Return the tensors in a file of weights, on the CPU. Raises InputError naming it."""
    import pickle

    import torch

    broken: tuple[type[Exception], ...] = (*_UNREADABLE, pickle.UnpicklingError)
    try:
        if file.suffix == _SAFETENSORS:
            import safetensors
            from safetensors.torch import load_file

            broken = (*broken, safetensors.SafetensorError)
            weights: Any = load_file(file)
        else:
            weights = torch.load(file, map_location="cpu", weights_only=True)
    except broken as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(file, f"cannot be read as weights ({why})") from error
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise InputError(file, "holds more or other than the state_dict of a model")
    return weights


def fit(model: Module, weights: dict[str, Tensor], file: Path) -> None:
    """Give a model its weights, all of them and no others; one that has two names may come under one of them.

    Raises InputError naming the file, and changes nothing then.
    """
    own = model.state_dict()
    tensors = {name: value for name, value in own.items() if hasattr(value, "shape")}
    there = {_place(value) for name, value in tensors.items() if name in weights}
    if lacking := sorted(name for name in tensors.keys() - weights.keys() if _place(tensors[name]) not in there):
        raise InputError(file, f"lacks {_some(lacking)}")
    if strange := sorted(weights.keys() - own.keys()):
        raise InputError(file, f"holds {_some(strange)}, which the model does not have")
    for name, value in tensors.items():
        if name in weights and value.shape != weights[name].shape:
            found, wanted = tuple(weights[name].shape), tuple(value.shape)
            raise InputError(file, f"holds {name} as {found}, the model has {wanted}")
    model.load_state_dict({**own, **weights})


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return what is equal for two names of one tensor, and for nothing else in a model."""
    return tensor.device, tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def share(model: Module) -> None:
    """Give every rank rank 0's parameters and buffers; all must have those of the same names and shapes."""
    group = peers.ranks()
    if group is None:
        return
    import torch
    import torch.distributed as dist

    from fluxguard.distributed.meetings.collectives import collective

    nccl = dist.get_backend() == "nccl"
    with collective("rank 0's weights"), torch.no_grad():
        for tensor in tensors_of(model):
            here = tensor.detach()
            sent = here.to(torch.cuda.current_device()) if nccl and here.device.type == "cpu" else here.contiguous()
            numbers = torch.view_as_real(sent) if sent.is_complex() else sent
            dist.broadcast(numbers.reshape(-1).view(torch.uint8), 0)  # as bytes: a backend does not know every type
            if sent.data_ptr() != here.data_ptr():
                here.copy_(sent)


def tensors_of(model: Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a model, each once, in its own order."""
    yield from model.parameters()
    yield from model.buffers()
