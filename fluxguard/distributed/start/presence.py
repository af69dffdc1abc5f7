"""What a process can say about itself at the roll call, and whether another one of this machine still lives."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from pathlib import Path

from fluxguard.distributed.start import devices, environment, program
from fluxguard.distributed.start.devices import Found
from fluxguard.distributed.start.environment import Place
from fluxguard.distributed.start.rollcall import MUST_AGREE, Record

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 19  # its place behind the name of the program in /proc/PID/stat
_DEAD = ("Z", "X")


def own(place: Place, found: Found, backend: str, device: int | None) -> Record:
    """Return what this process says about itself, under a word that no other process has."""
    import torch

    return Record(
        rank=place.rank,
        size=place.size,
        nonce=uuid.uuid4().hex,
        host=environment.host(),
        boot=boot(),
        pid=os.getpid(),
        born=_born(os.getpid()),
        local_rank=place.local_rank,
        backend=backend,
        device=devices.exclusive(backend, device, found.devices),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        torch=str(torch.__version__),
        nccl=found.nccl if devices.NCCL in backend else "",
        python=platform.python_version(),
        program=program.name_of(sys.argv),
        arguments=program.arguments(sys.argv),
        settings={name: os.environ[name] for name in MUST_AGREE if name in os.environ},
    )


def lives(record: Record) -> bool:
    """Return whether another process than this one is known to live: it must be on this machine."""
    if record.pid == os.getpid() or not record.born or (record.host, record.boot) != (environment.host(), boot()):
        return False
    return _born(record.pid) == record.born


def boot() -> str:
    """Return the id of the running system; empty where it has none."""
    try:
        return _BOOT.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _born(pid: int) -> str:
    """Return when a process of this machine began; empty when it is dead, or where that is not told."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return "" if fields[0] in _DEAD else fields[_STARTED]
    except (OSError, IndexError):
        return ""
