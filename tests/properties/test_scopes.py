"""Properties of scopes, whatever is opened, left, raised and slept in between."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from fluxguard.errors import DeadlineExceeded
from fluxguard.guard.deadlines import Scopes, fail_after
from tests.guard.machine import Machine

SECONDS = st.floats(min_value=0.1, max_value=100)
ENTER = st.tuples(st.just("enter"), st.none() | SECONDS)
LEAVE = st.tuples(st.just("leave"), st.integers(min_value=0, max_value=5))
RUN = st.tuples(st.just("run"), SECONDS)
SLEEP = st.tuples(st.just("sleep"), st.floats(min_value=10, max_value=1e6))
TICK = 1.0  # what a sleep may take from a limit: the time until the tick that was planned


class _Open:
    """Scopes that are open, and what is to be true of them."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.scopes = Scopes(self.machine.awake)
        self.open: list[tuple[float, Iterator[None]]] = []
        self.awake = 0.0
        self.slept = 0

    def enter(self, seconds: float | None) -> None:
        """Open a scope, in a generator so that it can be left in any order."""

        def scope() -> Iterator[None]:
            with fail_after(seconds, str(seconds), self.scopes):
                yield

        opened = scope()
        next(opened)
        self.open.append((self.awake + (math.inf if seconds is None else seconds), opened))

    def leave(self, place: int) -> None:
        """Leave one of the open scopes: by its end, or by an error in it."""
        if self.open:
            _, opened = self.open.pop(place % len(self.open))
            opened.close() if place % 2 else next(opened, None)  # type: ignore[attr-defined]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.machine.run(seconds)
        self.awake += seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass in which nobody runs."""
        self.machine.clock.jump(seconds)
        self.slept += 1

    def holds(self) -> None:
        """Compare with what is to be true: the earliest deadline counts, and only time in which somebody ran."""
        left = min((at for at, _ in self.open), default=math.inf) - self.awake
        told = self.scopes.remaining()
        assert told == left == math.inf or left - TICK * self.slept - 1e-6 <= told <= left + 1e-6
        try:
            self.scopes.check()
        except DeadlineExceeded:
            assert told <= 0
        else:
            assert told > 0


@given(story=st.lists(ENTER | LEAVE | RUN | SLEEP, max_size=25))
def test_the_earliest_deadline_counts_whatever_happens(story: list[tuple[str, float]]) -> None:
    """An inner scope never masks or destroys an outer one, and sleeping is no waiting."""
    world = _Open()
    for what, how in story:
        getattr(world, what)(how)
        world.holds()
    while world.open:
        world.leave(0)
    assert world.scopes.remaining() == math.inf


@given(seconds=st.lists(st.none() | SECONDS, min_size=1, max_size=8), raises=st.integers(min_value=0, max_value=8))
def test_nested_scopes_leave_nothing_behind(seconds: list[float | None], raises: int) -> None:
    """Wherever an error goes through them."""
    world = _Open()

    def nest(depth: int) -> None:
        if depth == raises:
            raise KeyError
        if depth < len(seconds):
            with fail_after(seconds[depth], "a wait", world.scopes):
                before = world.scopes.remaining()
                try:
                    nest(depth + 1)
                finally:
                    assert world.scopes.remaining() == before

    try:
        nest(0)
    except KeyError:
        assert raises <= len(seconds)
    assert world.scopes.remaining() == math.inf
