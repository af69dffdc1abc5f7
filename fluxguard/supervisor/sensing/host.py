"""The memory of the machine and of the container around a training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fluxguard.supervisor.sensing import cgroups
from fluxguard.supervisor.sensing.cgroups import Group

_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, kw_only=True)
class Host:
    """What memory there is; bytes, None is unknown."""

    available: int | None = None
    """What programs can still get without swapping."""
    total: int | None = None
    swap_used: int | None = None
    swap_total: int | None = None
    """0 for none."""
    cgroup_used: int | None = None
    """What the tightest control group holds, cache of files left out; None without a limit."""
    cgroup_limit: int | None = None
    oom_kills: int | None = None
    """Processes that the kernel has killed for memory, by the innermost group that counts them, else machine-wide."""


def look(groups: Sequence[Group]) -> Host:
    """Return what is to be seen now. `groups` are the control groups of the training."""
    available, total = _memory()
    swap_used, swap_total = _swap()
    used, limit = cgroups.tightest(groups)
    return Host(
        available=available,
        total=total,
        swap_used=swap_used,
        swap_total=swap_total,
        cgroup_used=used,
        cgroup_limit=limit,
        oom_kills=oom_kills(groups),
    )


def oom_kills(groups: Sequence[Group]) -> int | None:
    """Return how many processes the kernel has killed for memory: of the group, else of the machine, else None."""
    kills = cgroups.oom_kills(groups)
    return _machine_wide() if kills is None else kills


def _machine_wide() -> int | None:
    try:
        lines = _VMSTAT.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _memory() -> tuple[int | None, int | None]:
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError, ValueError):
        return None, None
    return memory.available, memory.total


def _swap() -> tuple[int | None, int | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # how much was swapped so far is not to be seen everywhere
            swap = psutil.swap_memory()
    except (OSError, psutil.Error, RuntimeError, ValueError):
        return None, None
    return swap.used, swap.total
