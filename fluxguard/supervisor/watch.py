"""The loop: look, remember, detect, until an attempt shows a symptom or somebody wants it stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fluxguard.clock import Clock
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.detectors import Symptom, detect
from fluxguard.supervisor.detecting.observation import History, Observation

_log = logging.getLogger(__name__)

_MOST_BLIND_LOOKS = 2000  # about ten minutes; then the training goes on unwatched, and `status` says so
_SAMPLES_PER_PATIENCE = 10
_WAIT_FOR_A_SAVE = ("overdue", "watched log")
"""Symptoms that end no save in the middle: it may still end by itself, within its own patience and ceiling."""
_SAMPLE_AT_MOST = 0.5
_SAMPLE_AT_LEAST = 15.0

Look = Callable[[bool], Observation]
"""Takes whether to sample what the processes use; returns what is to be seen."""


@dataclass(frozen=True)
class Watched:
    """How the watching of one attempt ended."""

    symptom: Symptom | None
    """None when it was asked to stop."""
    history: History


def watch(
    look: Look,
    clock: Clock,
    limits: Limits,
    *,
    stop_asked: Callable[[], bool],
    seen: Callable[[Observation], None] = lambda _: None,
    sampled: Callable[[History], None] = lambda _: None,
) -> Watched:
    """Watch until a detector speaks or `stop_asked` says so; every look is shown to `seen`.

    After each that sampled, `sampled` is given what all of them add up to.

    A look that fails is one that saw nothing; only after a great many in a row its error is let through.
    """
    history = History.begun(look(True))
    sampled_at = looked_at = history.last.now
    usual, blind = 0.0, 0
    while True:
        symptom = detect(history, limits)
        if symptom and not (symptom.kind in _WAIT_FOR_A_SAVE and _saving(history, limits)):
            return Watched(symptom, history)
        if stop_asked() and not _saving(history, limits):
            return Watched(None, history)
        before = clock.monotonic()
        clock.sleep(limits.watch.look)
        slept = clock.monotonic() - before
        if slept > limits.watch.look + limits.watch.late:
            history = history.shifted(slept, clock.monotonic())
        sample = clock.monotonic() - sampled_at >= _sample_every(history.last.phase, limits)
        try:
            observation = look(sample)
            looking = observation.now - looked_at - slept
            if looking > usual + limits.watch.late:
                # We were stopped in the middle, most likely with the training: what was read before is old by now.
                history = history.shifted(looking, observation.now)
            after = history.then(observation)
            seen(observation)
        except Exception:  # our own failure must not harm a training, and what cannot be seen is not hung
            blind, looked_at = blind + 1, clock.monotonic()
            _log.warning("a look failed", exc_info=blind == 1)
            if blind > _MOST_BLIND_LOOKS:
                raise
            continue
        # Where looks take long each time that is soon known: it must not keep a hang from being seen.
        usual = max(usual, min(looking, 2 * (usual + limits.watch.late)))
        looked_at, blind = observation.now, 0
        sampled_at = observation.now if sample else sampled_at
        history = after
        if sample:
            _tell(sampled, history)


def _tell(sampled: Callable[[History], None], history: History) -> None:
    """Tell of a sample; a listener that fails must not make us blind."""
    try:
        sampled(history)
    except Exception:  # noqa: BLE001 - the training is watched on, whatever of ours fails beside it
        _log.warning("what a sample shows cannot be kept", exc_info=True)


def _saving(history: History, limits: Limits) -> bool:
    """Return whether a save goes on that may still end: nothing but its ceiling ends it in the middle."""
    ceiling = limits.for_phase("saving").ceiling
    alone = history.last.now - history.progress_at
    return history.last.phase == "saving" and (ceiling is None or alone < ceiling)


def _sample_every(phase: str, limits: Limits) -> float:
    patience = limits.for_phase(phase).patience
    if patience is None:
        return _SAMPLE_AT_LEAST
    return min(max(patience / _SAMPLES_PER_PATIENCE, _SAMPLE_AT_MOST), _SAMPLE_AT_LEAST)
