"""Laws of the open waits, with a clock that only moves when told to."""

from __future__ import annotations

import threading
import time

import pytest

from fluxguard.clock import FakeClock, SystemClock
from fluxguard.guard import ending, pulse
from fluxguard.guard import watcher as watchers
from fluxguard.guard.watcher import LATE, OpenWaits, Wait


def _wait(clock: FakeClock, limit: float, what: str = "a wait", *, fatal: bool = True) -> Wait:
    return Wait(what, limit, clock.monotonic(), lambda wait: None, fatal)


class Ticking:
    """A watcher's loop without its thread."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = OpenWaits(self.clock.monotonic())

    def run(self, seconds: float) -> list[Wait]:
        """Tick for `seconds` and return what became due."""
        end = self.clock.monotonic() + seconds
        due: list[Wait] = []
        while self.clock.monotonic() < end and not due:
            self.clock.sleep(max(0.001, min(self.waits.pause(self.clock.monotonic()), end - self.clock.monotonic())))
            due = self.waits.tick(self.clock.monotonic())
        return due

    def lost(self) -> float:
        """Return the seconds in which nobody ran so far."""
        return self.waits.lost(self.clock.monotonic())


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


def test_a_wait_is_due_exactly_at_its_limit(ticking: Ticking) -> None:
    """The watcher wakes at the deadline itself, not at the tick after it."""
    wait = _wait(ticking.clock, 2.25)
    ticking.waits.add(wait)
    start = ticking.clock.monotonic()
    assert ticking.run(10) == [wait]
    assert ticking.clock.monotonic() - start == pytest.approx(2.25, abs=0.01)


def test_an_inner_wait_never_masks_an_outer_one(ticking: Ticking) -> None:
    """The earliest deadline wins, whichever was opened first."""
    outer, inner = _wait(ticking.clock, 3), _wait(ticking.clock, 100)
    ticking.waits.add(outer)
    ticking.waits.add(inner)
    assert ticking.run(10) == [outer]


def test_closing_an_inner_wait_leaves_the_outer_one(ticking: Ticking) -> None:
    """A scope that ends takes only its own deadline away."""
    outer, inner = _wait(ticking.clock, 3), _wait(ticking.clock, 1)
    ticking.waits.add(outer)
    ticking.waits.add(inner)
    ticking.waits.remove(inner)
    ticking.waits.remove(inner)
    assert ticking.run(10) == [outer]


def test_a_suspended_machine_shifts_every_deadline(ticking: Ticking) -> None:
    """Time in which nobody ran is not waited time."""
    wait = _wait(ticking.clock, 30)
    ticking.waits.add(wait)
    assert ticking.run(20) == []
    ticking.waits.pause(ticking.clock.monotonic())
    ticking.clock.jump(3600)
    assert ticking.waits.tick(ticking.clock.monotonic()) == []
    assert ticking.run(8) == []
    assert ticking.run(4) == [wait]


def test_a_tick_that_is_a_little_late_shifts_nothing(ticking: Ticking) -> None:
    """A loaded machine ticks late; that is no suspension."""
    wait = _wait(ticking.clock, 3)
    ticking.waits.add(wait)
    ticking.waits.pause(ticking.clock.monotonic())
    ticking.clock.jump(LATE)
    assert ticking.waits.tick(ticking.clock.monotonic()) == [wait]


def test_time_in_which_nobody_ran_is_known_before_the_watcher_has_ticked(ticking: Ticking) -> None:
    """Whoever looks first after a suspension does not find deadlines passed; the tick changes nothing about it."""
    ticking.run(20)
    ticking.waits.pause(ticking.clock.monotonic())
    slept = ticking.lost()
    ticking.clock.jump(3600)
    assert ticking.lost() == pytest.approx(slept + 3599)
    ticking.waits.tick(ticking.clock.monotonic())
    assert ticking.lost() == pytest.approx(slept + 3599)
    ticking.run(20)
    assert ticking.lost() == pytest.approx(slept + 3599)


def test_a_loaded_machine_loses_no_time(ticking: Ticking) -> None:
    """A tick that is a little late is waited time."""
    ticking.waits.pause(ticking.clock.monotonic())
    ticking.clock.jump(LATE + 1)
    assert ticking.lost() == 0
    ticking.waits.tick(ticking.clock.monotonic())
    assert ticking.lost() == 0


def test_a_watcher_that_is_busy_or_gone_stops_no_time(ticking: Ticking) -> None:
    """Only a tick that was planned can be late: what never ticks again must not hold every limit for ever."""
    ticking.waits.tick(ticking.clock.monotonic())
    ticking.clock.jump(60)
    assert ticking.lost() == 0
    ticking.waits.pause(ticking.clock.monotonic())
    ticking.waits.forgo()
    ticking.clock.jump(60)
    assert ticking.lost() == 0


def test_a_wait_opened_while_the_watcher_was_late_is_not_given_more_than_its_age(ticking: Ticking) -> None:
    """Only the time that a wait itself has lived through is given back to it, and counts as not waited."""
    ticking.waits.pause(ticking.clock.monotonic())
    ticking.clock.jump(60)
    opened = ticking.clock.monotonic()
    wait = _wait(ticking.clock, 10)
    ticking.waits.add(wait)
    ticking.clock.jump(1)
    ticking.waits.tick(ticking.clock.monotonic())
    assert wait.at == opened + 11
    assert wait.since == opened + 1


def test_only_fatal_waits_end_the_process(ticking: Ticking) -> None:
    """A wait that only kills workers is not shown and not backed by faulthandler; the earliest fatal one is first."""
    late, early = _wait(ticking.clock, 9), _wait(ticking.clock, 5)
    for wait in (_wait(ticking.clock, 1, fatal=False), late, early):
        ticking.waits.add(wait)
    assert ticking.waits.fatal() == [early, late]


def test_a_deadline_that_moved_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor ends a trainer that is past the deadline it sees; one that has not moved is no sign of life."""

    class Heart:
        wait, deadline, beats = b"", 0.0, 0

        def beat(self) -> None:
            self.beats += 1

    heart, clock = Heart(), FakeClock()
    monkeypatch.setattr(pulse, "heart", lambda: heart)
    watcher, wait = watchers.Watcher(clock), _wait(clock, 30)
    monkeypatch.setattr(watcher, "_thread", object())
    watcher.open(wait)
    assert (heart.deadline, heart.beats) == (wait.at, 1)
    watcher._follow()
    assert heart.beats == 1
    wait.at += 10
    watcher._follow()
    assert (heart.deadline, heart.beats) == (wait.at, 2)


def test_a_thread_that_cannot_be_started_costs_no_more_than_its_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of an interpreter, or of what the system allows: said once, tried again, and no time stands still."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    clock = FakeClock()
    watcher = watchers.Watcher(clock)
    for _ in range(2):
        watcher.open(_wait(clock, 30, fatal=False))
    assert len(caplog.records) == 1
    assert "can't start new thread" in caplog.text
    clock.jump(60)
    assert watcher.lost(clock.monotonic()) == 0


def test_a_fault_of_the_watcher_is_shown_and_the_next_wait_gets_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One wait that cannot be handled does not leave the others without a watcher for the rest of the training."""
    shown: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: shown.append(str(told.exc_value)))

    def fails(_: Wait) -> None:
        raise ValueError("a fault")

    watcher, seen = watchers.Watcher(SystemClock()), threading.Event()
    bad = Wait("a wait", 0.01, time.monotonic(), fails, False)
    watcher.open(bad)
    first = watcher._thread
    assert first is not None
    first.join(5)
    watcher.open(Wait("a wait", 0.01, time.monotonic(), lambda wait: seen.set(), False))
    assert seen.wait(5)
    assert shown == ["a fault"]


def test_a_signal_in_the_middle_of_the_watcher_may_wait_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler runs on the thread that already holds whatever the watcher holds."""
    watcher = watchers.Watcher(SystemClock())
    monkeypatch.setattr(ending, "arm", lambda at: None)
    monkeypatch.setattr(ending, "disarm", lambda: None)
    with watcher._wake, watcher._settling:
        wait = Wait("a wait", 30, time.monotonic(), lambda wait: None, True)
        watcher.open(wait, backed=True)
        watcher.close(wait)
