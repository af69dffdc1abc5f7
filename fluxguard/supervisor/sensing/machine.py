"""Figures of the machine for the report: memory, disk, GPU, and whether the kernel killed for memory."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Set
from pathlib import Path

from fluxguard.clock import Clock, SystemClock
from fluxguard.supervisor.sensing import cgroups, disk, host
from fluxguard.supervisor.sensing.gpu import Card, Gpus

_GIB = 1 << 30
_MEMORY_LOOK = 0.5
_NO_ROOM = 1 << 18  # less than the smallest file of a state
_DISK_ANSWER = 5.0


class _Machine:
    """The one helper that asks the GPU's driver, for all that this process wants to know."""

    gpus: Gpus | None = None


_machine = _Machine()


def gpu_sensor() -> Gpus:
    """Return the sensor of the cards, the same for the whole process; its helper starts with the first question."""
    if _machine.gpus is None:
        _machine.gpus = Gpus(SystemClock())
    return _machine.gpus


@atexit.register
def _close() -> None:
    if _machine.gpus is not None:
        _machine.gpus.close()


def out_of_memory_kills(pid: int | None = None) -> int:
    """Return how many processes the kernel has killed for memory, in the control group of a process, else in all; 0
    when that is not shown. Without `pid` it is the group of this process, which what it starts belongs to too."""
    return host.oom_kills(cgroups.of_process(pid) or cgroups.of_process()) or 0


def gpus(seconds: float) -> tuple[Card, ...]:
    """Return the NVIDIA cards, or none when there is no card or no answer within `seconds`."""
    return gpu_sensor().answer(seconds).cards or ()


def disk_full(folder: Path) -> bool:
    """Return whether next to nothing can be written in a folder; one that does not answer is not known to be full."""
    free = disk.free(folder, _DISK_ANSWER)
    return free is not None and free < _NO_ROOM


def figures(output_dir: Path, seconds: float) -> dict[str, str]:
    """Return what a person wants to know of the machine at the time of an incident, as text by name.

    What does not answer in time is named as unknown.
    """
    memory = host.look(cgroups.of_process())
    free = disk.free(output_dir, min(_DISK_ANSWER, seconds))
    found = {
        "free memory": f"{_gib(memory.available)} of {_gib(memory.total)} GiB",
        "free disk": "unknown: it does not answer" if free is None else f"{_gib(free)} GiB",
    }
    if memory.swap_total:
        found["swap"] = f"{_gib(memory.swap_used)} of {_gib(memory.swap_total)} GiB used"
    if memory.cgroup_limit:
        used = _gib(memory.cgroup_used)
        found["memory of the container"] = f"{used} of {_gib(memory.cgroup_limit)} GiB used, cache of files left out"
    sensor = gpu_sensor()
    seen = sensor.answer(seconds)
    for card in seen.cards or ():
        found[f"GPU {card.index}"] = card_words(card)
    if seen.cards is None and sensor.present():
        found["GPU"] = "unknown: its driver does not answer"
    if seen.xids:
        found["GPU faults"] = ", ".join(seen.xids)
    return found


def card_words(card: Card) -> str:
    """Return what a card shows, in words."""
    heat = _or_unknown(card.celsius, "degrees C")
    slowed = f", slowed down by {', '.join(card.throttled)}" if card.throttled else ""
    limit = f" of {card.watt_limit:.0f}" if card.watt_limit is not None else ""
    watts = "unknown" if card.watts is None else f"{card.watts:.0f}{limit}"
    busy = _or_unknown(card.utilisation, "%")
    return f"{_gib(card.used)} of {_gib(card.total)} GiB, {busy} busy, {watts} W, {heat}{slowed}"


def wait_for_gpu_memory(pids: Iterable[int], clock: Clock, *, longest: float, ask: float) -> None:
    """Wait until these ended processes hold no GPU memory, `longest` seconds at most; each question may take `ask`."""
    wanted = set(pids)
    deadline = clock.monotonic() + longest
    while wanted and _held(gpus(ask), wanted) and clock.monotonic() < deadline:
        clock.sleep(_MEMORY_LOOK)


def _held(cards: Iterable[Card], pids: Set[int]) -> bool:
    return any(pids & set(card.held or ()) for card in cards)


def _gib(value: int | None) -> str:
    return "?" if value is None else f"{value / _GIB:.1f}"


def _or_unknown(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"
