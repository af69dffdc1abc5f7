"""A model whose gradients are averaged over all ranks, and that still looks like itself."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fluxguard.distributed.meetings import hearing
from fluxguard.distributed.meetings.collectives import collective
from fluxguard.distributed.models import buckets, gradients, likeness
from fluxguard.errors import InputError
from fluxguard.guard import peers

if TYPE_CHECKING:
    from torch.nn import Module

logger = logging.getLogger(__name__)

_NAME = "wrap"
COMPRESSIONS = ("bf16", "fp16", "powersgd")
"""The ways in which gradients may travel smaller than they are."""
_SAME_ANYWAY = {"training", "device"}  # what DDP has under these names is what a model has


def wrap(
    model: Module,
    *,
    sync_batchnorm: bool = False,
    compression: str | None = None,
    powersgd: dict[str, Any] | None = None,
    from_rank_0: bool = False,
    exact: bool = True,
    **ddp: Any,
) -> Module:
    """Return `model` in a DistributedDataParallel, after all ranks have found that they hold the same one.

    The model must be on its device already; its device is given to DDP as an integer, on the CPU as None. What is
    returned shows the model's own attributes, and its `state_dict` has the model's own names, without `module.`: files
    fit with and without it, whatever the number of ranks. In a world of one it is not a DDP, and behaves the same:
    `.module`, `no_sync()`, attributes, names.

    `sync_batchnorm`: batch norms count over all ranks (needs GPUs). `compression`: "bf16" or "fp16" halve what float32
    gradients weigh on their way; "powersgd" sends a low rank of them, with `powersgd` given to torch's PowerSGDState.
    `from_rank_0`: every rank takes the values of rank 0, which are then not compared. `exact`: a resumed training sums
    gradients in the same order as one that was never cut off (with more than two ranks the last bits depend on it);
    without it DDP finds the order by which it can send soonest. All else is given to DDP.

    Raises RanksDisagree on every rank, naming ranks and parameter, when names, shapes, types, what is trained or any
    value differs; InputError (RankFailed on the other ranks) for an unknown compression, or a model that is where DDP
    or the backend cannot use it.
    """
    group = peers.ranks()
    if group is None:
        _check_name(compression)
        return _alone()(model)
    with hearing.together(_NAME):
        _check_name(compression)
        device = device_index(model)
        _check(model, device, group, sync_batchnorm=sync_batchnorm)
    likeness.compare(model, _NAME, values=not from_rank_0)
    if sync_batchnorm:
        import torch

        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    wrapped: Module = _parallel()(model, device_ids=None if device is None else [device], **ddp)
    if compression is not None:
        _compress(wrapped, compression, powersgd or {})
    if exact:
        buckets.settle(wrapped)
    _tell_hidden(wrapped)
    return wrapped


def device_index(model: Module) -> int | None:
    """Return the number of the GPU on which a model is; None for the CPU, and for a model on several devices."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or (device := devices.pop()).type != "cuda":
        return None
    index: int | None = device.index
    return index


def bare(model: Any) -> Module:
    """Return the model itself, out of DDP, `wrap` and torch.compile, whose names its weights are saved by."""
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(model, (DistributedDataParallel, _ShowsItsModel)):
            model = model.module
        elif "_orig_mod" in getattr(model, "_modules", {}):
            model = model._orig_mod
        else:
            found: Module = model
            return found


def _check_name(compression: str | None) -> None:
    if compression is not None and compression not in COMPRESSIONS:
        raise InputError("compression", f"{compression!r} is none of {', '.join(COMPRESSIONS)}")


def _check(model: Module, device: int | None, group: peers.Ranks, *, sync_batchnorm: bool) -> None:
    """Raise InputError for what DDP or its backend would choke on later, on one rank or all."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        raise InputError("model", "is wrapped already; with accelerate either prepare() it or wrap() it")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("model", "has no parameter that is trained: there is nothing to average")
    if device is not None and device != torch.cuda.current_device():
        here = torch.cuda.current_device()
        raise InputError("model", f"is on cuda:{device}, but rank {group.rank} works on cuda:{here}: model.to({here})")
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if on_cpu and torch.distributed.get_backend() == "nccl":
        raise InputError("model", "is on the CPU, which nccl cannot reach: move it to the GPU of this rank first")
    if on_cpu and sync_batchnorm:
        raise InputError("sync_batchnorm", "needs GPUs: torch has no synchronised batch norm for the CPU")


def _compress(wrapped: Any, compression: str, powersgd: dict[str, Any]) -> None:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compression == "powersgd":
        given = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 1000, **powersgd}
        wrapped.register_comm_hook(
            powerSGD_hook.PowerSGDState(process_group=None, **given), powerSGD_hook.powerSGD_hook
        )
        return
    backend = torch.distributed.get_backend()
    dtype = torch.bfloat16 if compression == "bf16" else torch.float16
    hook = default_hooks.bf16_compress_hook if compression == "bf16" else default_hooks.fp16_compress_hook
    try:  # every rank alike: what a backend can reduce does not depend on the rank
        torch.distributed.all_reduce(torch.zeros(1, dtype=dtype, device=next(wrapped.parameters()).device))
        # By its name DDP refuses the one for bfloat16 to every backend of the CPU; whether this one can is known now.
        wrapped.register_comm_hook(None, hook if backend == "nccl" else lambda group, bucket: hook(group, bucket))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError("compression", f"{backend} of this torch cannot reduce {compression} ({error})") from error


def _tell_hidden(wrapped: Any) -> None:
    """Say which attributes of the model have the names of DDP's own, which DDP needs."""
    missing = object()
    hidden = []
    for name in sorted(name for name in vars(wrapped) if not name.startswith("_")):
        theirs = getattr(wrapped.module, name, missing)
        if theirs is not missing and theirs is not getattr(wrapped, name) and name not in _SAME_ANYWAY:
            hidden.append(name)
    if hidden:
        logger.warning("%s: DDP has its own %s; the model's are behind .module", _NAME, ", ".join(hidden))


class _ShowsItsModel:
    """Shows the attributes and the weights of `module` as its own; what has the name of one of its own is its own."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is None:  # not made yet, or being unpickled
                raise
            return getattr(model, name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights under the model's own names."""
        return bare(self).state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights by the model's own names."""
        return bare(self).load_state_dict(*args, **kwargs)


@functools.cache
def _parallel() -> Callable[..., Any]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    class Parallel(_ShowsItsModel, DistributedDataParallel):
        """A DistributedDataParallel that looks like its model, and notes when it waits for the other ranks."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            outputs = super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]
            if self.require_backward_grad_sync and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                sums = self.__dict__.get("_sums")
                if sums is None:
                    sums = self.__dict__["_sums"] = gradients.Sums()
                sums.follow(outputs)
            return outputs

        def _sync_buffers(self) -> None:
            with collective(gradients.BUFFERS):
                super()._sync_buffers()  # type: ignore[no-untyped-call]

        def __getstate__(self) -> Any:
            state = super().__getstate__()  # type: ignore[no-untyped-call]
            state.pop("_sums", None)
            return state

    Parallel.__qualname__ = "Parallel"
    return Parallel


@functools.cache
def _alone() -> Callable[[Module], Module]:
    from torch import nn

    class Alone(_ShowsItsModel, nn.Module):
        """What a wrapped model is in a world of one."""

        def __init__(self, model: Module) -> None:
            super().__init__()
            self.module = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            """Do nothing: there is nobody to wait for."""
            yield

    Alone.__qualname__ = "Alone"
    return Alone


def __getattr__(name: str) -> Any:
    # Where pickle looks for them; torch is only imported when a model is wrapped.
    made = {"Parallel": _parallel, "Alone": _alone}.get(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made()
