"""A driver's bindings without a driver: two cards, a fault, and on demand a driver that is dead.

What it does is in the file that FAKE_NVML names, read at each question: `hang` blocks for ever, `lost` fails, anything
else answers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

_GIB = 1 << 30


class NVMLError(Exception):
    """What NVML raises."""


def _mood() -> str:
    path = Path(os.environ["FAKE_NVML"])
    return path.read_text().strip() if path.exists() else ""


def _answers() -> None:
    while _mood() == "hang":
        time.sleep(3600)
    if _mood() == "lost":
        raise NVMLError("GPU is lost")


def nvmlInit() -> None:
    """Fail where there is no driver."""
    if _mood() == "no driver":
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(card: int) -> bytes:
    return b"NVIDIA Fake"


def nvmlDeviceGetMemoryInfo(card: int) -> SimpleNamespace:
    _answers()
    return SimpleNamespace(used=(20 + card) * _GIB, total=24 * _GIB)


def nvmlDeviceGetUtilizationRates(card: int) -> SimpleNamespace:
    if card:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=100)


def nvmlDeviceGetPowerUsage(card: int) -> int:
    return 90_500


def nvmlDeviceGetEnforcedPowerLimit(card: int) -> int:
    return 350_000


def nvmlDeviceGetTemperature(card: int, sensor: int) -> int:
    return 61


def nvmlDeviceGetCurrentClocksThrottleReasons(card: int) -> int:
    return 0x40 | 0x04 if card else 0


def nvmlDeviceGetComputeRunningProcesses(card: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=4242, usedGpuMemory=None if card else 19 * _GIB)]


def nvmlEventSetCreate() -> list[int]:
    return [79, 31]


def nvmlDeviceRegisterEvents(card: int, kind: int, events: list[int]) -> None:
    assert kind == 8


def nvmlEventSetWait_v2(events: list[int], milliseconds: int) -> SimpleNamespace:
    if not events:
        raise NVMLError("Timeout")
    return SimpleNamespace(eventData=events.pop(0))
