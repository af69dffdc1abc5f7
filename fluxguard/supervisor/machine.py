"""Figures of the machine for the report: memory, disk, GPU, and whether the kernel killed for memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import psutil

from fluxguard.clock import Clock

_GIB = 1 << 30
_MEMORY_LOOK = 0.5
_NO_ROOM = 1 << 18  # less than the smallest file of a state
_VMSTAT = Path("/proc/vmstat")
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")

# In a process of its own: NVML blocks for ever on a dead driver, and must not take the supervisor with it.
_ASK_GPU = """
import json, pynvml
pynvml.nvmlInit()
cards = []
for index in range(pynvml.nvmlDeviceGetCount()):
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card)
    cards.append({
        "used": memory.used, "total": memory.total,
        "utilisation": pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
        "watts": pynvml.nvmlDeviceGetPowerUsage(card) / 1000,
        "celsius": pynvml.nvmlDeviceGetTemperature(card, 0),
        "processes": {p.pid: p.usedGpuMemory or 0 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)},
    })
print(json.dumps(cards))
"""


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for memory, in this container or machine; 0 when not shown."""
    for path in (_CGROUP_EVENTS, _VMSTAT):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def gpus(seconds: float) -> list[dict[str, object]]:
    """Return a figure set per NVIDIA card, or none when there is no card or no answer within `seconds`."""
    if not any(path.exists() for path in _DRIVERS) and os.name != "nt":
        return []
    try:
        done = subprocess.run([sys.executable, "-c", _ASK_GPU], capture_output=True, timeout=seconds, text=True)
        cards = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    return cards if isinstance(cards, list) else []


def disk_full(folder: Path) -> bool:
    """Return whether next to nothing can be written in a folder."""
    try:
        return shutil.disk_usage(folder).free < _NO_ROOM
    except OSError:
        return False


def figures(output_dir: Path, seconds: float) -> dict[str, str]:
    """Return what a person wants to know of the machine at the time of an incident, as text by name."""
    found = {}
    memory = psutil.virtual_memory()
    found["free memory"] = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB"
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(output_dir)
        found["free disk"] = f"{disk.free / _GIB:.1f} of {disk.total / _GIB:.1f} GiB"
    for index, card in enumerate(gpus(seconds)):
        found[f"GPU {index}"] = (
            f"{_gib(card['used'])} of {_gib(card['total'])} GiB, {card['utilisation']} % busy, "
            f"{card['watts']} W, {card['celsius']} degrees C"
        )
    return found


def wait_for_gpu_memory(pids: Iterable[int], clock: Clock, *, longest: float, ask: float) -> None:
    """Wait until these ended processes hold no GPU memory, `longest` seconds at most; each question may take `ask`."""
    wanted = {str(pid) for pid in pids}
    deadline = clock.monotonic() + longest
    while _held(gpus(ask), wanted) and clock.monotonic() < deadline:
        clock.sleep(_MEMORY_LOOK)


def _held(cards: Iterable[Mapping[str, object]], pids: Set[str]) -> bool:
    return any(isinstance(card.get("processes"), dict) and pids & set(card["processes"]) for card in cards)  # type: ignore[call-overload]


def _gib(value: object) -> str:
    return f"{value / _GIB:.1f}" if isinstance(value, (int, float)) else "?"
