"""Who a process is, beyond the reuse of its number and whatever happens to the clock on the wall."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fluxguard.supervisor.sensing import procfs

UNSEEN = (psutil.Error, OSError, RuntimeError, ValueError, AttributeError)
"""What psutil raises for a process that is gone, foreign, or on a kernel that does not tell."""

_GONE = ("Z", "X")
_SAME_START = 0.02  # one tick of the kernel's clock, written as a decimal number


@dataclass(frozen=True)
class Identity:
    """A process that had this number since that time."""

    pid: int
    started: float
    """On Linux seconds since the machine started, which no change of the clock moves; elsewhere since the epoch."""
    boot: str = ""
    """Which start of the machine that was; empty where it is not known."""

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of the process that has this number now, or None."""
        try:
            return cls(pid, _started(pid), _boot())
        except UNSEEN:
            return None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Identity | None:
        """Return what `to_mapping` wrote, or None when it is damaged."""
        try:
            return cls(int(values["pid"]), float(values["started"]), str(values.get("boot", "")))
        except (KeyError, TypeError, ValueError):
            return None

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values."""
        return {"pid": self.pid, "started": self.started, "boot": self.boot}

    def process(self) -> psutil.Process | None:
        """Return this very process while it runs; a zombie does not."""
        now = Identity.of(self.pid)
        if now is None or abs(now.started - self.started) > _SAME_START:
            return None
        if self.boot and now.boot and self.boot != now.boot:
            return None
        try:
            process = psutil.Process(self.pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except UNSEEN:
            return None

    def before_restart(self) -> bool:
        """Whether the machine has been started anew since; False where that is not known."""
        return bool(self.boot and _boot() and self.boot != _boot())

    def alive(self) -> bool:
        """Whether this very process still runs."""
        if not procfs.LINUX:
            return self.process() is not None
        try:
            seen = procfs.stat(self.pid)
        except UNSEEN:
            return False
        again = self.boot and _boot() and self.boot != _boot()
        return seen.state not in _GONE and not again and abs(_seconds(seen.ticks) - self.started) <= _SAME_START


def _started(pid: int) -> float:
    if not procfs.LINUX:
        return psutil.Process(pid).create_time()
    # Not psutil's create_time: it adds the boot time, which moves whenever the clock is set.
    return _seconds(procfs.stat(pid).ticks)


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
