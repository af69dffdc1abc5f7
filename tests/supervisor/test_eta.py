"""Laws of the pace: a true time to the end, whatever happens between the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from fluxguard.supervisor.showing.durations import said
from fluxguard.supervisor.showing.eta import pace_of


@dataclass(frozen=True)
class Sample:
    """A sample of a timeline."""

    at: float
    phase: str
    step: int
    attempt: int = 1


def stepping(count: int, each: float, *, at: float = 0.0, step: int = 0, every: float = 1.0) -> list[Sample]:
    """Return samples, `every` seconds, of a trainer that takes `each` seconds for a step."""
    samples = int(count * each / every)
    return [Sample(at + i * every, "step", step + int(i * every / each)) for i in range(samples + 1)]


def after(before: list[Sample], more: Iterable[Sample]) -> list[Sample]:
    """Return samples and those that follow them."""
    last = before[-1]
    return [*before, *(Sample(last.at + one.at, one.phase, last.step + one.step) for one in more)]


@pytest.mark.parametrize(("each", "every"), [(0.5, 0.5), (1.0, 0.5), (2.0, 0.5), (3.0, 15.0), (25.0, 15.0)])
def test_a_step_takes_what_it_takes_however_often_it_is_looked_at(each: float, every: float) -> None:
    """Also when several steps lie between two samples, or several samples in a step."""
    pace = pace_of(stepping(200, each, every=every))
    assert pace.now == pytest.approx(each, rel=0.13)
    assert pace.eta(1000) == pytest.approx((1000 - pace.step) * each, rel=0.13)


def test_loading_is_no_part_of_the_time_that_is_left() -> None:
    """An hour of loading and caching says nothing about the steps."""
    samples = after([Sample(0, "load", 0), Sample(3600, "first step", 0)], stepping(50, 2.0))
    assert pace_of(samples).eta(100) == pytest.approx(100, rel=0.05)


def test_sampling_and_saving_cost_what_they_have_cost_so_far() -> None:
    """Ten minutes of pictures after every 100 steps are in the time to the end, and in no step."""
    samples = stepping(100, 2.0)
    for _ in range(3):
        samples = after(samples, [Sample(i, "sampling", 0) for i in range(1, 600)])
        samples = after(samples, stepping(100, 2.0))
    pace = pace_of(samples)
    assert pace.now == pytest.approx(2.0, rel=0.05)
    assert pace.eta(800) == pytest.approx(400 * (2 + 1800 / 400), rel=0.05)


def test_a_machine_that_slept_is_no_slow_step() -> None:
    """Eight hours without a sample move neither the pace nor the time to the end."""
    samples = after(after(stepping(100, 2.0), [Sample(8 * 3600, "step", 1)]), stepping(100, 2.0))
    assert pace_of(samples).eta(301) == pytest.approx(200, rel=0.1)


def test_a_training_that_slows_down_shows_it() -> None:
    """Now, against the best."""
    pace = pace_of(after(stepping(100, 1.0), stepping(50, 4.0)))
    assert pace.now == pytest.approx(4.0, rel=0.05)


def test_an_earlier_attempt_says_nothing_about_this_one() -> None:
    """It may have run with other flags, on another machine."""
    old = [Sample(one.at, one.phase, one.step, 1) for one in stepping(100, 9.0)]
    new = [Sample(2000 + one.at, one.phase, 50 + one.step, 2) for one in stepping(20, 1.0)]
    assert pace_of([*old, *new]).now == pytest.approx(1.0, rel=0.1)
    assert pace_of([*old, *new[:1]]).now is None


def test_what_is_not_known_is_not_guessed() -> None:
    """No sample, no step, no plan: no time."""
    assert pace_of([]).eta(100) is None
    assert pace_of([Sample(0, "load", 0), Sample(9, "load", 0)]).eta(100) is None
    assert pace_of(stepping(20, 1.0)).eta(0) is None


def test_a_finished_count_leaves_nothing() -> None:
    """Never a negative time."""
    assert pace_of(stepping(20, 1.0)).eta(10) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (7200, "2 h"),
        (100800, "1 d 4 h"),
    ],
)  # fmt: skip
def test_durations_are_said_in_two_units(seconds: float, words: str) -> None:
    """As people say them."""
    assert said(seconds) == words
