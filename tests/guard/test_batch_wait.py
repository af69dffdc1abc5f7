"""Laws of the limit of a wait for a batch, on a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard import limits
from fluxguard.clock import FakeClock
from fluxguard.guard import batch_wait, pulse
from fluxguard.guard.batch_wait import BatchWait
from fluxguard.guard.crew import Crew, Delivery
from fluxguard.guard.watcher import Wait
from fluxguard.limits import Limits, WaitLimits

FIRST, BATCH = 60.0, 20.0


@dataclass
class World:
    """A clock, a watcher that only takes note, a crew of two, and what it reads."""

    clock: FakeClock = field(default_factory=FakeClock)
    waits: list[Wait] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    """The workers that have read since the last look."""
    slept: float = 0.0
    learned: list[tuple[str, float]] = field(default_factory=list)
    crew: Crew = field(default_factory=Crew)

    def open(self, wait: Wait) -> None:
        """See Watcher."""
        self.waits.append(wait)

    def close(self, wait: Wait) -> None:
        """See Watcher."""
        self.waits.remove(wait)

    def passes(self, seconds: float, *reads: int) -> None:
        """Let time pass with a look in each second, at which those workers have read."""
        for _ in range(round(seconds)):
            self.clock.jump(1.0)
            self.reads = set(reads)
            look = self.waits[0]
            assert look.on_due(look) == 1.0

    def left(self) -> float:
        """Return the seconds until the limit has passed."""
        return self.waits[1].at - self.clock.monotonic()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    class Reads:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def moved(self) -> bool:
            return self.pid in made.reads

    monkeypatch.setattr(batch_wait, "time", SimpleNamespace(monotonic=made.clock.monotonic))
    monkeypatch.setattr(batch_wait, "awake", made.clock.monotonic)
    monkeypatch.setattr(batch_wait, "lost", lambda: made.slept)
    monkeypatch.setattr(batch_wait, "watcher", lambda: made)
    monkeypatch.setattr(batch_wait, "ProcessMoved", Reads)
    monkeypatch.setattr(pulse, "completed", lambda *said: made.learned.append(said))
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(first_batch=FIRST, batch=BATCH)))
    for pid in (7, 8):
        process: Any = SimpleNamespace(pid=pid, exitcode=None)
        made.crew.join(process, (None, ()))
    return made


def due(_: Wait) -> None:
    """What is asked when the limit has passed."""


def begun(world: World, *, started: bool = True) -> BatchWait:
    """Return a wait that begins now, for worker 7."""
    if started:
        world.crew.given(0, (0, [0]))
        world.crew.delivered(Delivery(0, (0, "batch"), ()), 0)
    world.crew.given(0, (1, [1]))
    wait = BatchWait(world.crew, due)
    wait.begins()
    return wait


@pytest.mark.parametrize(("limit", "every"), [(60.0, 1.0), (3.0, 0.3)])
def test_the_limit_counts_from_the_last_byte_and_is_never_two_looks_late(
    monkeypatch: pytest.MonkeyPatch, world: World, limit: float, every: float
) -> None:
    """A worker that reads for 20 s and then hangs is gone a limit and two looks later, at the most."""
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(batch=limit)))
    read_until = world.clock.monotonic() + 20.0
    begun(world)
    look = world.waits[0]
    while len(world.waits) < 2 or world.clock.monotonic() < world.waits[1].at:
        world.reads = {7} if world.clock.monotonic() < read_until else set()
        world.clock.jump(every)
        assert look.on_due(look) == pytest.approx(every)
    assert limit <= world.clock.monotonic() - read_until <= limit + 2 * every


def test_silence_from_the_beginning_counts_from_the_beginning(world: World) -> None:
    """Not from the first look."""
    begun(world)
    world.passes(5)
    assert world.left() == BATCH - 5
    assert world.waits[1].on_due is due


def test_ten_times_the_limit_is_the_end_whatever_is_read(world: World) -> None:
    """A worker may try the same file again and again."""
    begun(world)
    world.passes(1, 7)
    for _ in range(int(9.5 * BATCH)):
        world.passes(1, 7)
    assert 0 < world.left() < BATCH


def test_only_who_owes_the_batch_can_put_the_limit_off(world: World) -> None:
    """Another worker may read for the batch after it: that brings this one no nearer."""
    begun(world)
    world.passes(5, 8)
    assert world.left() == BATCH - 5
    world.passes(1, 7)
    assert world.left() == BATCH


def test_what_a_worker_had_read_before_the_first_look_is_no_news(world: World) -> None:
    """There is nothing yet to compare it with."""
    begun(world)
    world.passes(1, 7)
    assert world.left() == BATCH - 1


def test_a_first_batch_has_a_limit_of_its_own(world: World) -> None:
    """Its workers may still import what they need; the next wait is an ordinary one."""
    wait = begun(world, started=False)
    assert wait.limit == FIRST
    world.passes(3)
    assert world.left() == FIRST - 3
    world.crew.delivered(Delivery(0, (1, "batch"), ()), 0)
    world.crew.given(0, (2, [2]))
    wait.begins()
    assert wait.limit == BATCH
    assert len(world.waits) == 1


def test_a_wait_that_is_over_before_the_first_look_is_one_entry_and_teaches_nothing(world: World) -> None:
    """Nearly all waits are so."""
    wait = begun(world)
    assert len(world.waits) == 1
    wait.completed()
    wait.ends()
    assert not world.waits
    assert not world.learned


def test_what_is_learned_is_the_longest_silence(world: World) -> None:
    """Not how long the batch took: with a byte now and then a slow disk needs no longer limit."""
    wait = begun(world)
    world.passes(1)
    world.passes(1, 7)
    world.passes(6)
    world.passes(1, 7)
    world.passes(3)
    wait.completed()
    assert world.learned == [("batch", 7.0)]


def test_the_silence_before_the_batch_itself_counts(world: World) -> None:
    """A batch that came from memory was silent all the time; and of a first one it is another kind."""
    wait = begun(world, started=False)
    world.passes(30)
    wait.completed()
    assert world.learned == [("first_batch", 30.0)]


def test_nothing_is_learned_when_the_machine_slept(world: World) -> None:
    """How much of the wait was sleep, nobody knows to the second."""
    wait = begun(world)
    world.passes(10)
    world.slept = 3600.0
    wait.completed()
    assert not world.learned


def test_what_was_slept_before_the_wait_is_no_part_of_it(world: World) -> None:
    """A laptop that slept in the morning learns in the afternoon."""
    world.slept = 3600.0
    wait = begun(world)
    world.passes(10)
    wait.completed()
    assert world.learned == [("batch", 10.0)]


def test_without_a_limit_nothing_is_watched(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """And nothing is learned."""
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(batch=None)))
    wait = begun(world)
    assert wait.limit is None
    assert not world.waits
    wait.completed()
    assert not world.learned


def test_a_look_that_comes_late_is_at_nothing(world: World) -> None:
    """The watcher may have taken it up just before the wait was over."""
    wait = begun(world)
    world.passes(2)
    look, limit = world.waits
    assert wait.is_open(limit)
    wait.ends()
    assert look.on_due(look) is None
    assert not wait.is_open(limit)
    assert not world.waits
