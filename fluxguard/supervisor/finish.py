"""Whether a trainer that said it was done has really finished, by what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis, named
from fluxguard.supervisor.causes.ending import UNKNOWN, UNVERIFIED
from fluxguard.supervisor.causes.numbers import NOT_NUMBERS
from fluxguard.supervisor.checkpoints import weights
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.trainee import Trainee

ELSEWHERE = "finished (exit code 0; rank 0, which saves the final weights, trained on another machine)"
UNNAMED = "finished (exit code 0; no weights were named that could be verified)"


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of a run that trained to its end."""

    reason: str
    weights: str
    """Path of the final weights; empty when none were named."""
    size: int | None
    """Their bytes."""


def judge(
    trainee: Trainee, plan: Plan, attempt: Attempt, applied: int, *, elsewhere: bool = False
) -> Finish | Diagnosis:
    """Return the finish of an attempt that ended by itself after `applied` true steps, or why it is none.

    `elsewhere` says that another machine saves the final weights.
    """
    if trainee.weights is None:
        return Finish(reason=UNNAMED, weights="", size=None)
    if elsewhere:
        return Finish(reason=ELSEWHERE, weights="", size=None)
    found = weights.verify(trainee.weights, newer_than=_newer_than(attempt, trainee.weights))
    if not found.verified:
        return named(UNVERIFIED if found.finite else NOT_NUMBERS, found.reason)
    path, size = str(trainee.weights), trainee.weights.stat().st_size
    if trainee.foreign:
        return Finish(reason=f"finished and verified: {found.reason}", weights=path, size=size)
    if plan.planned_steps and applied != plan.planned_steps:
        return named("wrong number of steps", f"{applied} of {plan.planned_steps}")
    return Finish(reason=f"finished and verified: {applied} steps, {found.reason}", weights=path, size=size)


def saved_elsewhere(trainee: Trainee, ranks: Sequence[int]) -> bool:
    """Whether another of several machines saves the final weights: rank 0 does, and is none of `ranks`.

    Without a heartbeat nobody knows; then weights that do not lie here were not saved here.
    """
    if not trainee.several or 0 in ranks:
        return False
    return bool(ranks) or not (trainee.weights is None or trainee.weights.exists())


def better(known: Diagnosis | None, told: Callable[[], Diagnosis]) -> Diagnosis:
    """Return why an attempt did not finish: what is `known`, or what its output and the counters have told.

    That weights are missing says nothing about why: a trainer that finds no images says so and ends with code 0. Pure.
    """
    if known is not None and known.cause != UNVERIFIED:
        return known
    found = told()
    return found if known is None or found.cause != UNKNOWN else known


def stamp(path: Path | None) -> list[int]:
    """Return what tells a file from the same one written anew, whatever the clock says; empty while there is none."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size, found.st_ino] if found else []


def _newer_than(attempt: Attempt, path: Path) -> float:
    """Return since when weights count as this attempt's: always, when they are others than lay there at its start.

    A clock that was set back meanwhile makes new weights look old.
    """
    before = attempt.weights_before
    return 0.0 if before is not None and stamp(path) not in ([], list(before)) else attempt.at
