"""Laws of a save that goes on when something else is wanted: it is let end, as long as one may last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import stopping
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.observation import Observation
from fluxguard.supervisor.watch import watch
from tests.supervisor.histories import BEAT, look

LIMITS = Limits()
CEILING = LIMITS.for_phase("saving").ceiling or 0
ATTEMPT = Attempt(uuid="0" * 32, number=1, start_step=0, log_from=0, at=0.0, keeper=None)


def at(clock: FakeClock, phase: str) -> Observation:
    """Return a look at a trainer whose guard should have ended a wait, and did not."""
    return look(clock.now, beat=replace(BEAT, phase=phase, wait="a batch", deadline=5.0), cpu=clock.now)


@pytest.mark.parametrize(("saved_by", "seen_at"), [(60.0, 60.0), (1e9, CEILING)])
def test_a_wait_that_is_overdue_ends_no_save_in_the_middle(saved_by: float, seen_at: float) -> None:
    """Once it is saved, or the save itself lasts too long, it counts."""
    clock = FakeClock(0.0)

    def seen(_: bool) -> Observation:
        return at(clock, "saving" if clock.now < saved_by else "step")

    result = watch(seen, clock, LIMITS, stop_asked=lambda: False)
    assert result.symptom is not None
    assert seen_at <= clock.now <= seen_at + LIMITS.watch.look + 1


@pytest.mark.parametrize(("saved_by", "waited"), [(0.0, 0.0), (60.0, 60.0), (1e9, CEILING)])
def test_a_stop_in_the_place_of_a_supervisor_lets_the_save_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_by: float, waited: float
) -> None:
    """As its supervisor would have done."""
    clock, run = FakeClock(0.0), RunDir(tmp_path)
    run.create()
    write_json(run.limits, {})

    class Seen:
        def __init__(self, *_: object) -> None:
            pass

        def look(self) -> Observation:
            return at(clock, "saving" if clock.now < saved_by else "step")

    monkeypatch.setattr(stopping, "Sensors", Seen)
    wait: Callable[..., Observation] = stopping._after_the_save
    wait(run, ATTEMPT, Seen().look(), clock)
    assert waited <= clock.now <= waited + 1
