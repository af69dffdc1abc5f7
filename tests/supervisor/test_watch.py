"""Laws of the watching loop, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fluxguard.clock import FakeClock
from fluxguard.limits import Limits
from fluxguard.supervisor.observation import Observation
from fluxguard.supervisor.watch import Watched, watch
from tests.supervisor.histories import BEAT, look

LIMITS = Limits()


def watched(at: Callable[[FakeClock], Observation], *, stop_at: float = 1e9) -> tuple[Watched, float]:
    """Watch what `at` shows; return how it ended and when."""
    clock = FakeClock(0.0)
    result = watch(lambda _: at(clock), clock, LIMITS, stop_asked=lambda: clock.now >= stop_at)
    return result, clock.now


def test_a_stall_is_seen_one_look_after_its_limit() -> None:
    """A virtual hour passes in no time."""
    result, now = watched(lambda clock: look(clock.now, beat=replace(BEAT, step=min(9, int(clock.now))), cpu=0.0))
    assert result.symptom is not None
    assert result.symptom.kind == "idle"
    assert 309 <= now <= 310


def test_a_request_to_stop_ends_the_watching() -> None:
    """At the next look."""
    result, now = watched(lambda clock: look(clock.now, beat=BEAT, cpu=clock.now), stop_at=20)
    assert result.symptom is None
    assert 20 <= now < 21


def test_a_save_is_let_end_before_a_stop() -> None:
    """What is being saved is what the run resumes from."""

    def saving(clock: FakeClock) -> Observation:
        phase = "saving" if clock.now < 60 else "step"
        return look(clock.now, beat=replace(BEAT, phase=phase), cpu=clock.now)

    result, now = watched(saving, stop_at=20)
    assert result.symptom is None
    assert 60 <= now < 61


def test_a_suspended_machine_is_no_stall() -> None:
    """An hour of sleep counts for no limit; a stall after it does."""
    slept: list[bool] = []

    def sleeping(clock: FakeClock) -> Observation:
        if clock.now > 100 and not slept:
            slept.append(True)
            clock.jump(3600)
        waiting = replace(BEAT, step=min(5, int(clock.now)), wait="block swap", deadline=90.0 if slept else 1e9)
        moved_on = slept and clock.now > 3702
        return look(clock.now, beat=replace(waiting, deadline=1e9) if moved_on else waiting, cpu=0.0)

    result, now = watched(sleeping)
    assert result.symptom is not None
    assert result.symptom.kind in ("idle", "stuck")  # either limit is 300 s in this phase
    assert 3600 + 300 < now < 3600 + 420
