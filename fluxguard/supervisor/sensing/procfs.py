"""What Linux tells of processes in /proc, as often as it is asked for here: psutil reads more than that each time."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

LINUX = sys.platform.startswith("linux")
_FOLDER = "/proc"
_READ = 4096
_AFRESH = 20
"""Looks after which all processes are read again: the number of a stranger may have come to one of ours."""


@dataclass(frozen=True)
class Stat:
    """The first things of a process."""

    state: str
    """One letter; Z is a zombie."""
    parent: int
    ticks: int
    """When it was started, in ticks of the kernel since the machine was."""


def stat(pid: int) -> Stat:
    """Return what is told of a process. Raises OSError and ValueError when it is gone."""
    fd = os.open(f"{_FOLDER}/{pid}/stat", os.O_RDONLY)
    try:
        words = os.read(fd, _READ).rpartition(b")")[2].split()  # a name may hold spaces and brackets
    finally:
        os.close(fd)
    if len(words) < 20:
        raise ValueError("the process is gone")
    return Stat(words[0].decode(), int(words[1]), int(words[19]))


@dataclass
class Tree:
    """Finds what descends from a process. Who does not will never do so: of those only their numbers are looked at."""

    _strangers: set[int] = field(default_factory=set)
    _looks: int = 0

    def below(self, root: int) -> list[int]:
        """Return the descendants of a process. Raises OSError where that is not told."""
        if self._looks % _AFRESH == 0:
            self._strangers.clear()
        self._looks += 1
        there = {int(name) for name in os.listdir(_FOLDER) if name.isdecimal()}
        self._strangers &= there
        parents: dict[int, int] = {}
        for pid in there - self._strangers:
            try:
                parents[pid] = stat(pid).parent
            except (OSError, ValueError):
                continue
        kin = _descendants({root}, parents)
        # Not all that are no kin: the parent of one that has just begun may have been missed.
        self._strangers |= _descendants({0, *self._strangers}, {p: q for p, q in parents.items() if p not in kin})
        self._strangers -= {0, root}
        return sorted(kin - {root})


def _descendants(found: set[int], parents: dict[int, int]) -> set[int]:
    found = set(found)
    while born := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= born
    return found
