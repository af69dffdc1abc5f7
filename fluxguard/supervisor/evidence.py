"""Collects what is to be seen of an attempt that shows a symptom, before anything is ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import machine, processes, stacks
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Evidence
from fluxguard.supervisor.observation import History


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
        stacks=stacks.twice(run, attempt, living, clock, limits) if living else {},
        disk_full=machine.disk_full(run.output_dir),
        out_of_memory=machine.out_of_memory_kills() > attempt.kills_before,
    )


def last_words(run: RunDir, attempt: Attempt) -> Mapping[str, Any] | None:
    """Return what the guard of this attempt wrote before it ended the trainer, with its rank, or None.

    Of several ranks it is the first that spoke: the others may only have waited for that one.
    """
    said = [words for path in run.all_last_words() if (words := _words(path, attempt)) is not None]
    return min(said, key=_said_at, default=None)


def _words(path: Path, attempt: Attempt) -> Mapping[str, Any] | None:
    words = read_json(path)
    return {**words, "rank": int(path.suffixes[-2][1:])} if words and words.get("attempt") == attempt.uuid else None


def _said_at(words: Mapping[str, Any]) -> float:
    at = words.get("time")
    return at if isinstance(at, (int, float)) else math.inf
