"""Collects what is to be seen of an attempt that shows a symptom, before anything is ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from fluxguard.clock import Clock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import machine, processes
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Evidence
from fluxguard.supervisor.identity import UNSEEN, Identity
from fluxguard.supervisor.observation import History, Observation
from fluxguard.supervisor.processes import NO_STACKS

_DUMP_TAKES = 0.5
_MOST_PROCESSES = 12


def collect(
    run: RunDir, attempt: Attempt, symptom: Symptom, history: History, clock: Clock, limits: WatchLimits
) -> Evidence:
    """Return the evidence but for lines and step; of what lives the stacks are taken twice, `settle` seconds apart.

    It takes `evidence` seconds at most, and as long again as the samples lie apart.
    """
    seen = history.last
    living = attempt.processes() if symptom.kind not in ("ended", "given up") else []
    usage = processes.usage(None, living) if living else None
    return Evidence(
        exit=seen.exit,
        last_words=last_words(run, attempt),
        usage=usage or (history.sampled.usage if history.sampled else None),
        workers=processes.workers(living),
        stacks=_stacks(run, living, seen, clock, limits) if living else {},
        disk_full=machine.disk_full(run.output_dir),
        out_of_memory=machine.out_of_memory_kills() > attempt.kills_before,
    )


def last_words(run: RunDir, attempt: Attempt) -> Mapping[str, Any] | None:
    """Return what the guard of this attempt wrote before it ended the trainer, or None."""
    words = read_json(run.last_words(0))
    return words if words and words.get("attempt") == attempt.uuid else None


def _stacks(
    run: RunDir, living: list[Identity], seen: Observation, clock: Clock, limits: WatchLimits
) -> dict[int, str]:
    pids = [identity.pid for identity in living][:_MOST_PROCESSES]
    until = clock.monotonic() + limits.evidence
    first = dict(processes.stacks(pids, clock, until=until))
    clock.sleep(limits.settle)
    second = dict(processes.stacks(pids, clock, until=until + limits.settle))
    found = {}
    for pid, stack in first.items():
        again = second.get(pid, "")
        moved = "the same again" if again == stack else f"then:\n{again}"
        found[pid] = f"{stack}\n{limits.settle:g} s later {moved}"
    for identity in living:
        if seen.beat and identity.pid == seen.beat.pid and first.get(identity.pid, "").startswith(NO_STACKS):
            found[identity.pid] = _asked_of_guard(run, identity, clock) or found[identity.pid]
    return found


def _asked_of_guard(run: RunDir, trainer: Identity, clock: Clock) -> str:
    """Return the stacks that the guard's own signal handler writes; it needs no rights and no interpreter lock."""
    number = getattr(signal, "SIGUSR1", None)
    process = trainer.process()
    if number is None or process is None:
        return ""
    try:
        process.send_signal(number)
    except UNSEEN:
        return ""
    clock.sleep(_DUMP_TAKES)
    try:
        return run.stacks(0).read_text("utf-8", "replace")
    except OSError:
        return ""
