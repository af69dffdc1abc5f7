"""The scene of an incident: everything that is to be seen of what lives, as files, taken before anything is ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fluxguard.clock import Clock
from fluxguard.heartbeat import Beat
from fluxguard.supervisor.incidents import kernel, native
from fluxguard.supervisor.incidents.bounded import NotFound, Task
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import Identity

NATIVE_STACKS = "native-stacks.txt"
PROCESSES = "processes.txt"
HEARTBEATS = "heartbeats.json"

_MOST_PROCESSES = 64
_MOST_NATIVE = 4
_TO_SAY_SO = 1.0
"""Seconds before the end of the time in which a debugger that did not answer is ended and named."""
_LONGEST = 1 << 20
"""Characters of one file."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What was taken, as the files that it becomes."""

    files: Mapping[str, str] = field(default_factory=dict)
    """By name, each of bounded size."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Of what there is none: why, by the same names."""

    def then(self, name: str, text: object, why: str) -> Scene:
        """Return the scene with one more file, or with why there is none."""
        if isinstance(text, str) and text.strip() and not why:
            return Scene(files={**self.files, name: text[:_LONGEST]}, missing=self.missing)
        return Scene(files=self.files, missing={**self.missing, name: why or "not available: nothing was to be seen"})


def roles(living: Sequence[Identity], beats: Sequence[Beat]) -> dict[int, str]:
    """Return what each process does, as far as it is known."""
    ranks = {beat.pid: f"trainer, rank {beat.rank}" for beat in beats}
    workers = dict.fromkeys(processes.workers(living), "loader worker")
    return {identity.pid: ranks.get(identity.pid) or workers.get(identity.pid) or "" for identity in living}


def kernel_states(living: Sequence[Identity], beats: Sequence[Beat], *, seconds: float) -> tuple[object, str]:
    """Return what the kernel says of each process, and why nothing when it is so; takes at most `seconds`."""

    def look() -> str:
        if not living:
            raise NotFound("no process of the attempt lived any more")
        seen = living[:_MOST_PROCESSES]
        return kernel.described(seen, roles(seen, beats))

    return Task("state of the processes", look).result(seconds)


def native_stacks(
    living: Sequence[Identity], beats: Sequence[Beat], clock: Clock, *, until: float
) -> tuple[object, str]:
    """Return the native stacks of the trainers, or of the biggest process when none has said that it trains."""
    ranks = {beat.pid for beat in beats}

    def look() -> str:
        trainers = [one for one in living if one.pid in ranks] or kernel.biggest_first(living)[:1]
        return native.stacks([one.pid for one in trainers[:_MOST_NATIVE]], clock, until=until - _TO_SAY_SO)

    return Task("native stacks", look).result(until - clock.monotonic())


def heartbeats(beats: Sequence[Beat], now: float) -> str:
    """Return the last heartbeat of every rank as JSON; what is no number is null."""
    return json.dumps([_plain(beat, now) for beat in sorted(beats, key=lambda beat: beat.rank)], indent=2)


def _plain(beat: Beat, now: float) -> dict[str, Any]:
    values = {**asdict(beat), "attempt": beat.attempt.hex(), "age": round(now - beat.at, 3)}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
