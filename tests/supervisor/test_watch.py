"""Laws of the watching loop, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fluxguard.clock import FakeClock
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import Observation
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


def test_a_heal_is_no_hang() -> None:
    """Workers are stuck for their limit, and fresh ones take the time of a first batch: nothing outside ends that."""
    stuck, fresh = LIMITS.wait.batch or 0, LIMITS.wait.first_batch or 0

    def healing(clock: FakeClock) -> Observation:
        beats = 5 + (clock.now > 10) + (clock.now > 10 + stuck) + max(0, int(clock.now - 10 - stuck - fresh))
        return look(clock.now, beat=replace(BEAT, beats=beats), cpu=0.5 * clock.now)

    result, now = watched(healing, stop_at=1000)
    assert result.symptom is None
    assert now >= 1000


class Suspended(FakeClock):
    """A clock of a machine that sleeps for an hour, once, in the middle of a sleep of ours."""

    slept = False

    def sleep(self, seconds: float) -> None:
        """Sleep, and for an hour more at 100 s."""
        super().sleep(seconds)
        if self.now > 100 and not self.slept:
            self.slept = True
            self.jump(3600)


def test_a_suspended_machine_is_no_stall() -> None:
    """An hour of sleep counts for no limit, nor for the guard's own; a stall after it does."""
    clock = Suspended(0.0)

    def stalled(_: bool) -> Observation:
        moved_on = not clock.slept or clock.now > 3702  # the guard moves its limits on, but not at once
        beat = replace(BEAT, step=min(5, int(clock.now)), wait="block swap", deadline=1e9 if moved_on else 90.0)
        return look(clock.now, beat=beat, cpu=0.0)

    result = watch(stalled, clock, LIMITS, stop_asked=lambda: False)
    assert result.symptom is not None
    assert result.symptom.kind in ("idle", "stuck")  # either limit is 300 s in this phase
    assert 3600 + 300 < clock.now < 3600 + 420


def test_a_look_that_fails_saw_nothing() -> None:
    """A share that does not answer for a while harms nobody; what is seen afterwards counts."""
    clock = FakeClock(0.0)

    def flaky(_: bool) -> Observation:
        if 5 < clock.now < 100:
            raise OSError(116, "Stale file handle")
        return look(clock.now, beat=replace(BEAT, step=int(clock.now)), cpu=clock.now)

    result = watch(flaky, clock, LIMITS, stop_asked=lambda: clock.now > 200)
    assert result.symptom is None


def test_who_keeps_samples_may_fail() -> None:
    """A disk that is full costs the samples, not the watching: a stall is seen all the same."""
    clock, told = FakeClock(0.0), []

    def keep(history: object) -> None:
        told.append(history)
        raise OSError(28, "No space left on device")

    result = watch(
        lambda sample: look(clock.now, beat=replace(BEAT, step=min(9, int(clock.now))), cpu=0.0 if sample else None),
        clock,
        LIMITS,
        stop_asked=lambda: False,
        sampled=keep,
    )
    assert result.symptom is not None
    assert 300 <= clock.now <= 311
    assert len(told) == 20  # one in 15 s, not one in each look


def test_who_is_stopped_in_the_middle_of_a_look_ends_nothing() -> None:
    """A container that is paused for an hour stops supervisor and trainer alike, and what was read before is old."""
    clock = FakeClock(0.0)
    paused = False

    def look_at(_: bool) -> Observation:
        nonlocal paused
        goes_on = clock.now < 100 or clock.now > 3760  # what it stopped in takes a minute more
        beat = replace(BEAT, step=int(clock.now) if goes_on else 100)
        if clock.now > 100 and not paused:
            paused = True
            clock.jump(3600)
        return look(clock.now, beat=beat, cpu=0.0)

    result = watch(look_at, clock, LIMITS, stop_asked=lambda: clock.now > 4200)
    assert result.symptom is None


def test_looks_that_are_always_slow_still_see_a_hang() -> None:
    """On a machine where each takes twenty seconds."""
    clock = FakeClock(0.0)

    def slow(_: bool) -> Observation:
        clock.sleep(20)
        return look(clock.now, beat=replace(BEAT, step=min(5, int(clock.now))), cpu=0.0)

    result = watch(slow, clock, LIMITS, stop_asked=lambda: clock.now > 3600)
    assert result.symptom is not None
    assert clock.now < 500
