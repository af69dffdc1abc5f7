"""The ways in which a drill breaks a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from fluxguard.drill.workshop import Workshop
from fluxguard.errors import InputError
from fluxguard.heartbeat import Beat


@dataclass(frozen=True)
class Fault:
    """One way to break a training that runs."""

    name: str
    words: str
    inject: Callable[[Beat, Workshop], bool]
    """Breaks the training that the beat belongs to; returns whether it could."""
    heals: bool = False
    """Whether it is put right in place, without another attempt."""


def _kill(beat: Beat, workshop: Workshop) -> bool:
    """End the trainer as the system or a host does: without a word."""
    try:
        psutil.Process(beat.pid).kill()
    except psutil.Error:
        return False
    return True


def _stick_swap(beat: Beat, workshop: Workshop) -> bool:
    """Make the next block swap never come back."""
    (workshop.faults / "swap").touch()
    return True


def _stop_worker(beat: Beat, workshop: Workshop) -> bool:
    """Stop a DataLoader worker, which holds its sockets open and answers nothing."""
    try:
        trainer = psutil.Process(beat.pid)
        workers = [child for child in trainer.children() if child.cmdline() == trainer.cmdline()]
        if workers:
            workers[0].suspend()
    except psutil.Error:
        return False
    return bool(workers)


FAULTS = (
    Fault("kill", "SIGKILL in mid-epoch", _kill),
    Fault("swap", "a block swap that never returns", _stick_swap),
    Fault("worker", "a stopped DataLoader worker", _stop_worker, heals=True),
)


def named(names: list[str]) -> tuple[Fault, ...]:
    """Return the faults of these names, all of them for none. Raises InputError for an unknown one."""
    known = {fault.name: fault for fault in FAULTS}
    for name in names:
        if name not in known:
            raise InputError("--fault", f"{name!r} is not one of {', '.join(known)}")
    return tuple(known[name] for name in names) or FAULTS
