"""Laws of the detectors, as tables of histories: no process, no sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard.limits import PHASES, Limits
from fluxguard.supervisor.detecting.detectors import detect
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.sensing.output import Shown
from tests.supervisor.histories import BEAT, beats, history, look, silence

LIMITS = Limits()


def kind(looks: list[object]) -> str | None:
    """Return the kind of the symptom that these looks show."""
    symptom = detect(history(looks), LIMITS)  # type: ignore[arg-type]
    return symptom.kind if symptom else None


def test_a_training_that_steps_is_healthy() -> None:
    """An hour of steps shows nothing."""
    assert kind([*beats(3600)]) is None


def test_a_slow_step_is_healthy_while_the_processor_works() -> None:
    """Nothing is idle that uses the processor, up to the ceiling."""
    looks = beats(10)
    assert kind([*looks, *silence(looks[-1], 290, busy=1.0)]) is None


def test_silence_past_the_patience_is_idle() -> None:
    """No beat, no output, no processor time, no I/O: idle once the patience of the phase is over."""
    looks = beats(10)
    assert kind([*looks, *silence(looks[-1], 299)]) is None
    assert kind([*looks, *silence(looks[-1], 303)]) == "idle"


def test_no_progress_past_the_ceiling_is_stuck_whatever_moves() -> None:
    """A hang at 100 % is a hang."""
    looks = beats(10)
    assert kind([*looks, *silence(looks[-1], 303, busy=1.0)]) == "stuck"


def test_the_ceiling_of_a_step_grows_with_the_slowest_seen() -> None:
    """A run whose steps take two minutes is not stuck after five."""
    looks = beats(5, every=120.0)
    assert kind([*looks, *silence(looks[-1], 900, busy=1.0)]) is None
    assert kind([*looks, *silence(looks[-1], 1203, busy=1.0)]) == "stuck"


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "step"])
def test_every_other_phase_has_its_own_patience(phase: str) -> None:
    """Caching, sampling and saving are silent for longer than a step may be."""
    looks = beats(3, phase=phase)
    assert kind([*looks, *silence(looks[-1], 599)]) is None
    patience = LIMITS.for_phase(phase).patience
    assert patience is not None
    assert kind([*looks, *silence(looks[-1], patience + 3)]) == "idle"


def test_output_is_a_sign_of_life() -> None:
    """A trainer without heartbeats that prints is not idle."""
    looks = [look(float(i), output=i, cpu=0.0) for i in range(1000)]
    assert kind([*looks]) is None


def test_what_cannot_be_seen_is_not_idle() -> None:
    """Without a heartbeat and without a sample there is no verdict before the ceiling."""
    looks = [look(float(i)) for i in range(0, 3500, 10)]
    assert kind([*looks]) is None


def test_a_worker_that_polls_is_idle() -> None:
    """A loop that wakes for a moment now and then does nothing."""
    shown = Shown(bar=5, phase="step")
    looks = [look(i * 15.0, shown=shown, cpu=0.01 * i) for i in range(25)]
    assert kind([*looks]) == "idle"


def test_a_wait_past_its_own_limit_is_overdue() -> None:
    """The guard should have ended the process: it cannot run any more."""
    waiting = replace(BEAT, at=10.0, wait="block swap", deadline=40.0)
    assert kind([look(10, beat=BEAT), look(42, beat=waiting)]) is None
    assert kind([look(10, beat=BEAT), look(43.5, beat=waiting)]) == "overdue"


def test_an_end_is_seen_at_once() -> None:
    """How it ended does not matter here."""
    assert kind([look(1, beat=BEAT), look(2, beat=BEAT, exit=Exit(code=1))]) == "ended"


def test_the_symptom_counts_from_the_last_beat() -> None:
    """Detected after: seconds since the last beat or output, not since the limit."""
    looks = beats(10)
    symptom = detect(history([*looks, *silence(looks[-1], 305)]), LIMITS)
    assert symptom is not None
    assert symptom.since == pytest.approx(305, abs=4)
