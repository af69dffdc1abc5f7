"""Histories for the tests of the detectors: what was seen, look by look."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fluxguard.clock import FakeClock
from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit, History, Observation
from fluxguard.supervisor.sensing.output import Shown
from fluxguard.supervisor.sensing.processes import Usage
from fluxguard.supervisor.watch import watch

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


class Looking(FakeClock):
    """A clock that is coarse but around some times, so that hours pass in few looks; it never sleeps late."""

    def __init__(self, fine: Iterable[float] = (), naps: Mapping[float, float] = MappingProxyType({})) -> None:
        """`fine`: times around which a look is as near to the next one as the limits say; `naps`: at which time the
        machine sleeps for how long."""
        super().__init__(0.0)
        self._fine = tuple(fine)
        self._naps = dict(naps)

    def sleep(self, seconds: float) -> None:
        """Move on, by much where nothing is to be measured."""
        fine = any(-3 * COARSE <= self.now - at <= 3 * COARSE for at in self._fine)
        self.now += seconds if fine else COARSE
        for at in [at for at in self._naps if at <= self.now]:
            self.jump(self._naps.pop(at))


COARSE = 20.0
"""Seconds between two looks that are far from any limit."""

At = Callable[[float], Observation]
"""What is to be seen at a time; what the processes use is left out where the look does not sample."""


def watched(
    at: At,
    until: float,
    *,
    limits: Limits,
    fine: Iterable[float] = (),
    naps: Mapping[float, float] = MappingProxyType({}),
) -> tuple[Symptom | None, float]:
    """Watch a training as the supervisor does, to a symptom or `until`; return the symptom and when it was seen."""
    clock = Looking(fine, naps)
    limits = replace(limits, watch=replace(limits.watch, late=2 * COARSE))

    def seen(sample: bool) -> Observation:
        found = replace(at(clock.now), now=clock.now)
        return found if sample else replace(found, usage=None, host=None)

    result = watch(seen, clock, limits, stop_asked=lambda: clock.now >= until)
    return result.symptom, clock.now
