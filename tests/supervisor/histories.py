"""Histories for the tests of the detectors: what was seen, look by look."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from fluxguard.heartbeat import Beat
from fluxguard.supervisor.observation import Exit, History, Observation
from fluxguard.supervisor.output import Shown
from fluxguard.supervisor.processes import Usage

BEAT = Beat(
    pid=1, started=0.0, rank=0, attempt=bytes(16), beats=1, step=5, total=40, epoch=1, batch=5, at=0.0, phase="step",
    phase_at=0.0, done=0, of=0, wait="", deadline=math.inf, loss=0.5,
)  # fmt: skip


def look(
    now: float, *, beat: Beat | None = None, shown: Shown | None = None, output: int = 0, cpu: float | None = None,
    io: int = 0, exit: Exit | None = None,
) -> Observation:  # fmt: skip
    """Return one look; `cpu` None means that the processes were not sampled."""
    usage = None if cpu is None else Usage(cpu, io, ())
    return Observation(now=now, exit=exit, beat=beat, shown=shown or Shown(), output=output, usage=usage)


def history(looks: Iterable[Observation]) -> History:
    """Return what these looks add up to."""
    first, *rest = looks
    made = History.begun(first)
    for seen in rest:
        made = made.then(seen)
    return made


def beats(count: int, every: float = 1.0, *, phase: str = "step") -> list[Observation]:
    """Return looks at a trainer that steps once in `every` seconds."""
    return [
        look(i * every, beat=replace(BEAT, beats=i, step=i, at=i * every, phase=phase)) for i in range(1, count + 1)
    ]


def silence(after: Observation, seconds: float, *, busy: float = 0.0, every: float = 1.0) -> list[Observation]:
    """Return looks in which nothing changes but the processor time, `busy` seconds of it a second."""
    cpu = after.usage.cpu if after.usage else 0.0
    steps = int(seconds / every)
    return [
        replace(after, now=after.now + i * every, usage=Usage(cpu + busy * i * every, 0, ()))
        for i in range(1, steps + 1)
    ]
