"""The table of causes: each with its one sentence, what proves it, and what to do. Data; `diagnosis` reads it.

The order decides only between two causes that one and the same line proves: the special before the general.
"""

from __future__ import annotations

from fluxguard.supervisor.causes import (
    arguments,
    disk,
    ending,
    files,
    gpu,
    hangs,
    hub,
    machines,
    memory,
    numbers,
    outside,
    ranks,
    versions,
    watched,
    workers,
)
from fluxguard.supervisor.causes.cause import Cause

THEMES: tuple[tuple[str, tuple[Cause, ...]], ...] = (
    ("Memory", memory.CAUSES),
    ("Disk", disk.CAUSES),
    ("Loader workers", workers.CAUSES),
    ("Files", files.CAUSES),
    ("Arguments and data set", arguments.CAUSES),
    ("Hub and network", hub.CAUSES),
    ("Versions and packages", versions.CAUSES),
    ("GPU and driver", gpu.CAUSES),
    ("Several machines", machines.CAUSES),
    ("Several ranks", ranks.CAUSES),
    ("Numbers", numbers.CAUSES),
    ("From outside", outside.CAUSES),
    ("No progress", hangs.CAUSES),
    ("Your own log patterns", watched.CAUSES),
    ("Other ends", ending.CAUSES),
)
"""Every cause, by theme."""

CAUSES: tuple[Cause, ...] = tuple(cause for _, causes in THEMES for cause in causes)
"""Every cause, the special before the general."""

BY_NAME = {cause.name: cause for cause in CAUSES}
