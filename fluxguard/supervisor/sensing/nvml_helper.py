"""Says what the NVIDIA driver knows of the cards: one line of JSON for each line that it is sent.

A program of its own (`python nvml_helper.py`), because NVML blocks for ever on a dead driver and must not take the
supervisor with it. It ends when its input ends, that is with whoever started it, even while it hangs in the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_TEMPERATURE_GPU = 0
_XID = 8
"""nvmlEventTypeXidCriticalError."""
_MOST_XIDS = 64

_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""By bit of the driver's reasons: what slows a card down beside its own clock settings and having nothing to do."""


def main() -> None:
    """Answer until nobody asks any more. The first line says why there will be no answers when there cannot be any."""
    asked = _asked()
    _end_with_parent()
    sys.path.pop(0)  # our own folder: its names are not meant for the driver's bindings
    try:
        import pynvml

        pynvml.nvmlInit()
        cards = [_Card(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception as error:  # noqa: BLE001 - whatever the driver and its bindings raise: there are no answers then
        _tell({"failed": f"{type(error).__name__}: {error}"})
        return
    faults = _Faults(pynvml, cards)
    while True:
        asked.get()
        _tell({"cards": [card.read() for card in cards], "xids": list(faults.read())})


def _asked() -> queue.SimpleQueue[bytes]:
    """Return a queue of what is asked; when nobody can ask any more the process ends, whatever its main thread does."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def follow() -> None:
        while line := sys.stdin.buffer.readline():
            lines.put(line)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    return lines


def _end_with_parent() -> None:
    """Have the kernel end this process with its parent, where it can: a driver may hold the interpreter's lock."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _tell(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class _Card:
    """One card; what its driver does not tell is None."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def _ask(self, name: str, *words: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self.handle, *words)
        except (self._nvml.NVMLError, AttributeError, ctypes.ArgumentError):
            return None

    def read(self) -> dict[str, Any]:
        """Return what is to be known of it now."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        name = self._ask("nvmlDeviceGetName")
        return {
            "index": self.index,
            "name": name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name or ""),
            "used": memory.used if memory else None,
            "total": memory.total if memory else None,
            "utilisation": rates.gpu if rates else None,
            "watts": _scaled(self._ask("nvmlDeviceGetPowerUsage")),
            "watt_limit": _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            "celsius": self._ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "throttled": self._throttled(),
            "held": self._held(),
        }

    def _throttled(self) -> list[str] | None:
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if reasons is None else [words for bit, words in _THROTTLES.items() if reasons & bit]

    def _held(self) -> dict[int, int] | None:
        """Return the bytes that each process holds; 0 where the driver names a process but not what it holds."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else {process.pid: process.usedGpuMemory or 0 for process in found}


class _Faults:
    """The critical faults (XID) that the driver reports while we listen; none where it does not let us."""

    def __init__(self, nvml: Any, cards: list[_Card]) -> None:
        self._nvml = nvml
        self._wait: Callable[..., Any] | None = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            self._events = nvml.nvmlEventSetCreate()
            for card in cards:
                nvml.nvmlDeviceRegisterEvents(card.handle, _XID, self._events)
            self._wait = getattr(nvml, "nvmlEventSetWait_v2", None) or nvml.nvmlEventSetWait

    def read(self) -> Iterator[int]:
        """Yield the numbers of those that are new."""
        for _ in range(_MOST_XIDS):
            if self._wait is None:
                return
            try:
                event = self._wait(self._events, 0)
            except (self._nvml.NVMLError, AttributeError):  # none waits
                return
            yield int(event.eventData)


def _scaled(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


if __name__ == "__main__":
    main()
