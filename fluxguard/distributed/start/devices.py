"""What a rank computes on, and what carries its collectives. Decisions are pure; `found` alone asks torch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluxguard.distributed.start.environment import source
from fluxguard.errors import SetupFailed

NCCL, GLOO = "nccl", "gloo"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TRUE = ("1", "true", "yes", "y", "on", "t")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What torch can use in this process."""

    devices: tuple[str, ...] = ()
    """The identity of each GPU it sees, in its order; empty where it does not say."""
    nccl: str = ""
    """The version of NCCL; empty without it."""


def backend(found: Found, environment: Mapping[str, str], asked: str | None = None) -> str:
    """Return what was asked for, else nccl where there are GPUs to use, else gloo."""
    if asked:
        return asked
    on_cpu = environment.get("ACCELERATE_USE_CPU", "").strip().lower() in _TRUE
    return NCCL if found.devices and found.nccl and not on_cpu else GLOO


def device(found: Found, chosen: str, environment: Mapping[str, str], rank: int, local_rank: int | None) -> int | None:
    """Return the number of this rank's GPU; None when its collectives need none.

    A process that sees one GPU alone uses it, whatever its local rank: its launcher has shared them out. Raises
    SetupFailed when there is none for it.
    """
    if NCCL not in chosen:
        return None
    count, visible = len(found.devices), environment.get(_VISIBLE)
    shown = "not set" if visible is None else repr(visible)
    if not count:
        reason = f"is {shown}, and torch sees no GPU, which {NCCL} needs; look at nvidia-smi, or use backend='{GLOO}'"
        raise SetupFailed(source(rank), reason, _VISIBLE, rank)
    if count == 1:
        return 0
    if local_rank is None:
        reason = (
            f"is missing, and {count} GPUs are visible: which is this rank's? torchrun and accelerate launch set it"
        )
        raise SetupFailed(source(rank), reason, "LOCAL_RANK", rank)
    if local_rank >= count:
        reason = (
            f"is {local_rank}, but torch sees only {count} GPUs ({_VISIBLE} is {shown}); "
            f"start at most {count} ranks on this machine (--nproc-per-node)"
        )
        raise SetupFailed(source(rank), reason, "LOCAL_RANK", rank)
    return local_rank


def identity(index: int, visible: str | None, uuid: str, bus: str) -> str:
    """Return what tells one GPU from all others in the world: its UUID, else its place in this machine.

    A slice of a GPU (MIG) shows the UUID of the whole one on some versions; its own stands in CUDA_VISIBLE_DEVICES.
    """
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    own = names[index] if index < len(names) else ""
    if own.startswith("MIG-"):
        return own
    return uuid or bus


def found() -> Found:
    """Ask torch which GPUs it sees, without touching any."""
    import torch

    if not torch.cuda.is_available():
        return Found()
    seen = [_identity(torch, index) for index in range(torch.cuda.device_count())]
    return Found(devices=tuple(seen), nccl=_nccl(torch))


def use(index: int | None) -> None:
    """Make a GPU the current one of this thread; None changes nothing."""
    if index is not None:
        sys.modules["torch"].cuda.set_device(index)


def exclusive(chosen: str, index: int | None, devices: Sequence[str]) -> str:
    """Return the identity of a GPU that no other rank may use; empty where they may share it."""
    return devices[index] if NCCL in chosen and index is not None and index < len(devices) else ""


def _identity(torch: object, index: int) -> str:
    properties = torch.cuda.get_device_properties(index)  # type: ignore[attr-defined]
    uuid = getattr(properties, "uuid", None)  # torch 2.4 and later
    bus = getattr(properties, "pci_bus_id", None)
    place = "" if bus is None else f"{os.uname().nodename if hasattr(os, 'uname') else ''} PCI bus {bus}"
    return identity(index, os.environ.get(_VISIBLE), f"GPU-{uuid}" if uuid else "", place)


def _nccl(torch: object) -> str:
    with contextlib.suppress(AttributeError, RuntimeError, ImportError, TypeError):
        version = torch.cuda.nccl.version()  # type: ignore[attr-defined]
        return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return ""
