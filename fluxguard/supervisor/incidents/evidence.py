"""Collects what is to be seen of an attempt that shows a symptom, before anything is ended.

Every part has its own thread and its share of one time limit: what hangs in the kernel, fails or is forbidden costs a
line in the report that says so, and delays the end of the trainer no longer than that limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.heartbeat import Beat
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Evidence
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.incidents import scene as scenes
from fluxguard.supervisor.incidents import stacks
from fluxguard.supervisor.incidents.bounded import Task
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.sensing import machine, processes
from fluxguard.supervisor.sensing.identity import Identity

_FINISHED = ("ended", "given up")
_LEAST = 1.0
"""Seconds that each part gets although the time for evidence is over: most answer within milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Everything that was taken before the end."""

    evidence: Evidence
    """For the diagnosis."""
    scene: Scene
    """For people."""
    figures: Mapping[str, str]
    """Of the machine, by name."""


def take(run: RunDir, attempt: Attempt, symptom: Symptom, history: History, clock: Clock, limits: WatchLimits) -> Taken:
    """Return all that is to be seen, lines and step left out. Never raises.

    It takes `evidence` seconds at most, as long again as the two samples of the stacks lie apart, and a little for each
    part that does not answer at all.
    """
    until = clock.monotonic() + limits.evidence + limits.settle

    def left() -> float:
        return max(_LEAST, until - clock.monotonic())

    # Disk and driver may each take as long as that; neither may still be asked when the next one asks.
    figures = Task("figures of the machine", lambda: machine.figures(run.output_dir, limits.evidence / 2))
    beats, _ = Task("heartbeats", lambda: attempt.beats(run)).result(left())
    ranks: Sequence[Beat] = beats if isinstance(beats, list) else ()
    living = _living(attempt, symptom, left())
    scene = Scene()
    if ranks:
        scene = scene.then(scenes.HEARTBEATS, scenes.heartbeats(ranks, clock.monotonic()), "")
    if symptom.kind not in _FINISHED:
        scene = scene.then(scenes.PROCESSES, *scenes.kernel_states(living, ranks, seconds=left()))
    evidence = _collected(run, attempt, living, history, clock, limits, left)
    if symptom.kind not in _FINISHED:
        native = scenes.native_stacks(living, ranks, clock, until=until)
        scene = scene.then(scenes.NATIVE_STACKS, *native)
    seen, why = figures.result(left())
    shown = dict(seen) if isinstance(seen, Mapping) else {"figures of the machine": f"unknown ({why})"}
    return Taken(evidence=evidence, scene=scene, figures=shown)


def collect(
    run: RunDir, attempt: Attempt, symptom: Symptom, history: History, clock: Clock, limits: WatchLimits
) -> Evidence:
    """Return the part of `take` that the diagnosis needs."""
    until = clock.monotonic() + limits.evidence + limits.settle
    living = _living(attempt, symptom, limits.evidence)
    return _collected(run, attempt, living, history, clock, limits, lambda: max(_LEAST, until - clock.monotonic()))


def _living(attempt: Attempt, symptom: Symptom, seconds: float) -> list[Identity]:
    if symptom.kind in _FINISHED:
        return []
    found, _ = Task("processes", attempt.processes).result(seconds)
    return found if isinstance(found, list) else []


def _collected(
    run: RunDir,
    attempt: Attempt,
    living: Sequence[Identity],
    history: History,
    clock: Clock,
    limits: WatchLimits,
    left: Callable[[], float],
) -> Evidence:
    """Return the evidence; `left` says for how many seconds more. What lives shows its stacks twice, `settle` apart."""
    shown: dict[int, str] = {}
    facts = Task("facts", lambda: _facts(run, attempt, living))
    taken = Task("Python stacks", lambda: stacks.twice(run, attempt, living, clock, limits, shown))
    known, _ = facts.result(left())
    _, why = taken.result(left())
    evidence = Evidence(
        exit=history.last.exit,
        last_words=last_words(run, attempt),
        # A copy: what did not come in time may still come, and too late.
        stacks={**{one.pid: f"{processes.NO_STACKS}: {why}" for one in living if why}, **shown},
        **(known if isinstance(known, dict) else {}),
        **_sensed(history),
    )
    usage = history.sampled.usage if history.sampled else None
    return evidence if evidence.usage is not None else replace(evidence, usage=usage)


def _facts(run: RunDir, attempt: Attempt, living: Sequence[Identity]) -> dict[str, Any]:
    return {
        "usage": processes.usage(None, living) if living else None,
        "workers": processes.workers(living),
        "disk_full": machine.disk_full(run.output_dir),
        "out_of_memory": machine.out_of_memory_kills() > attempt.kills_before,
    }


def _sensed(history: History) -> dict[str, Any]:
    """Return what the sensors saw last, before the end changed it."""
    looks = (history.last, *reversed(history.samples))
    return {
        "cards": next((seen.gpus for seen in looks if seen.gpus is not None), None),
        "host": next((seen.host for seen in looks if seen.host is not None), None),
        "xids": history.last.xids,
    }


def last_words(run: RunDir, attempt: Attempt) -> Mapping[str, Any] | None:
    """Return what the guard of this attempt wrote before it ended the trainer, with its rank, or None.

    Of several ranks it is the first that spoke: the others may only have waited for that one.
    """
    said = [words for path in run.all_last_words() if (words := _words(path, attempt)) is not None]
    return min(said, key=_said_at, default=None)


def _words(path: Path, attempt: Attempt) -> Mapping[str, Any] | None:
    words = read_json(path)
    if not words or words.get("attempt") != attempt.uuid:
        return None
    seconds: dict[str, Any] = {name: _number(words[name]) for name in ("waited", "limit", "time") if name in words}
    return {**words, **seconds, "rank": int(path.suffixes[-2][1:])}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _said_at(words: Mapping[str, Any]) -> float:
    at = words.get("time")
    return at if isinstance(at, (int, float)) else math.inf
