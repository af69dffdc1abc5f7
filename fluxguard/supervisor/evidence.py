"""Collects what is to be seen of an attempt that shows a symptom, before anything is ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import psutil

from fluxguard.clock import Clock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import machine, processes
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Evidence
from fluxguard.supervisor.observation import Observation

_DUMP_TAKES = 0.5
_MOST_PROCESSES = 12


def collect(
    run: RunDir,
    attempt: Attempt,
    symptom: Symptom,
    seen: Observation,
    lines: list[str],
    step: int,
    clock: Clock,
    limits: WatchLimits,
) -> Evidence:
    """Return the evidence; of processes that still live, the stacks are taken twice, `settle` seconds apart."""
    living = symptom.kind not in ("ended", "given up")
    return Evidence(
        exit=seen.exit,
        last_words=last_words(run, attempt),
        lines=tuple(lines),
        usage=processes.usage(attempt.keeper) if living and attempt.keeper else None,
        stacks=_stacks(run, attempt, seen, clock, limits) if living else {},
        step=step,
        out_of_memory=machine.out_of_memory_kills() > attempt.kills_before,
    )


def last_words(run: RunDir, attempt: Attempt) -> Mapping[str, Any] | None:
    """Return what the guard of this attempt wrote before it ended the trainer, or None."""
    words = read_json(run.last_words(0))
    return words if words and words.get("attempt") == attempt.uuid else None


def _stacks(run: RunDir, attempt: Attempt, seen: Observation, clock: Clock, limits: WatchLimits) -> dict[int, str]:
    pids = [identity.pid for identity in attempt.processes()][:_MOST_PROCESSES]
    first = dict(processes.stacks(pids, limits.evidence))
    clock.sleep(limits.settle)
    second = dict(processes.stacks(pids, limits.evidence))
    found = {}
    for pid, stack in first.items():
        again = second.get(pid, "")
        moved = "the same again" if again == stack else f"then:\n{again}"
        found[pid] = f"{stack}\n{limits.settle:g} s later {moved}"
    if seen.beat and first.get(seen.beat.pid, "no stacks").startswith("no stacks"):
        found[seen.beat.pid] = _asked_of_guard(run, seen.beat.pid, clock) or found.get(seen.beat.pid, "")
    return found


def _asked_of_guard(run: RunDir, pid: int, clock: Clock) -> str:
    """Return the stacks that the guard's own signal handler writes; it needs no rights and no interpreter lock."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None:
        return ""
    try:
        psutil.Process(pid).send_signal(number)
    except psutil.Error:
        return ""
    clock.sleep(_DUMP_TAKES)
    try:
        return run.stacks(0).read_text("utf-8", "replace")
    except OSError:
        return ""
