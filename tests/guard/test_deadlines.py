"""Laws of the two verbs that need no process of their own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from fluxguard.clock import FakeClock
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines, watcher
from fluxguard.guard.deadlines import Scopes, exit_after, fail_after
from fluxguard.heartbeat import Heart
from tests.guard.machine import Machine


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def scopes(clock: FakeClock) -> Scopes:
    return Scopes(clock.monotonic)


def test_no_scope_is_no_limit(scopes: Scopes) -> None:
    """Outside of every scope a wait may last for ever."""
    scopes.check()
    assert scopes.remaining() == float("inf")


def test_an_inner_scope_never_masks_an_outer_one(scopes: Scopes, clock: FakeClock) -> None:
    """The earliest deadline wins and is the one that is named."""
    with fail_after(2, "the outer", scopes), fail_after(60, "the inner", scopes):
        assert scopes.remaining() == 2
        clock.jump(3)
        with pytest.raises(DeadlineExceeded, match="the outer did not finish within 2 s"):
            scopes.check()


def test_an_inner_scope_never_destroys_an_outer_one(scopes: Scopes, clock: FakeClock) -> None:
    """After an inner scope the outer one still counts from its own beginning."""
    with fail_after(10, "the outer", scopes):
        with fail_after(1, "the inner", scopes):
            clock.jump(0.5)
        assert scopes.remaining() == 9.5


def test_a_body_that_raises_cancels_its_scope(scopes: Scopes) -> None:
    """No deadline outlives its block."""
    with pytest.raises(KeyError), fail_after(1, "a wait", scopes):
        raise KeyError
    assert scopes.remaining() == float("inf")


def test_none_is_no_limit(scopes: Scopes) -> None:
    """None means no limit, inside a scope that has one as well."""
    with fail_after(5, "the outer", scopes), fail_after(None, "the inner", scopes):
        assert scopes.remaining() == 5
    with exit_after(None, "a wait"):
        pass


@pytest.mark.parametrize("seconds", [0, -1, 0.0, float("nan")])
@pytest.mark.parametrize("verb", [fail_after, exit_after])
def test_zero_is_refused_with_a_sentence(verb: type[fail_after] | type[exit_after], seconds: float) -> None:
    """0 reads as "off" and would act as "at once"."""
    with pytest.raises(ValueError, match=r"must be more than 0 \(None means no limit\)"):
        verb(seconds, "a wait")


def test_one_scope_may_decorate_a_function_that_calls_itself(scopes: Scopes) -> None:
    """A decorated function opens its scope anew at each call."""

    @fail_after(5, "a wait", scopes)
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    assert depth(3) == 3
    assert scopes.remaining() == float("inf")


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_time_in_which_the_machine_slept_is_no_waited_time(machine: Machine) -> None:
    """Whether the watcher has ticked since or not, and for every scope around the wait."""
    scopes = Scopes(machine.awake)
    with fail_after(60, "the outer", scopes), fail_after(30, "the inner", scopes):
        machine.run(20)
        machine.clock.jump(3600)
        scopes.check()
        assert scopes.remaining() == pytest.approx(10, abs=1.1)
        machine.run(8)
        scopes.check()
        machine.run(3)
        with pytest.raises(DeadlineExceeded, match="the inner did not finish within 30 s"):
            scopes.check()


def test_a_jump_of_the_clock_that_is_a_little_late_counts(machine: Machine) -> None:
    """A loaded machine is not one that slept."""
    scopes = Scopes(machine.awake)
    with fail_after(3, "a wait", scopes):
        machine.clock.jump(4)
        with pytest.raises(DeadlineExceeded):
            scopes.check()


def test_a_scope_opened_after_a_sleep_has_its_whole_time(machine: Machine) -> None:
    """Before the watcher has ticked again."""
    scopes = Scopes(machine.awake)
    machine.clock.jump(3600)
    with fail_after(10, "a wait", scopes):
        machine.run(9)
        scopes.check()
        machine.run(3)
        with pytest.raises(DeadlineExceeded):
            scopes.check()


def test_a_scope_may_be_used_again_and_inside_itself(scopes: Scopes, clock: FakeClock) -> None:
    """Each entry counts from itself."""
    scope = fail_after(10, "a wait", scopes)
    with scope:
        clock.jump(4)
        with scope:
            assert scopes.remaining() == 6
        assert scopes.remaining() == 6
    assert scopes.remaining() == float("inf")
    with scope:
        assert scopes.remaining() == 10


def test_scopes_of_generators_end_in_any_order(scopes: Scopes) -> None:
    """Each takes away its own deadline, not that of whoever entered last."""

    def waits(seconds: float) -> Iterator[None]:
        with fail_after(seconds, "a generator", scopes):
            yield

    first, second = waits(5), waits(7)
    next(first)
    next(second)
    assert list(first) == []
    assert scopes.remaining() == 7
    assert list(second) == []
    assert scopes.remaining() == float("inf")


def test_a_generator_that_is_thrown_away_leaves_no_deadline(scopes: Scopes) -> None:
    """Not even when another thread is the one that drops it."""

    def waits() -> Iterator[None]:
        with fail_after(5, "a generator", scopes):
            yield

    left = [waits()]
    next(left[0])
    assert scopes.remaining() == 5
    thread = threading.Thread(target=left.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert scopes.remaining() == float("inf")


def test_threads_have_their_own_scopes(scopes: Scopes) -> None:
    """A deadline of one thread is none of another, even when both use the same object."""
    scope = fail_after(5, "a wait", scopes)
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        seen.append(scopes.remaining())
        with scope:
            entered.set()
            leave.wait(5)
            seen.append(scopes.remaining())
        seen.append(scopes.remaining())

    thread = threading.Thread(target=other)
    with scope:
        thread.start()
        entered.wait(5)
    assert scopes.remaining() == float("inf")
    leave.set()
    thread.join()
    assert seen == [float("inf"), 5, float("inf")]


@pytest.mark.parametrize("verb", [fail_after, exit_after])
def test_what_does_not_run_when_it_is_called_cannot_be_decorated(verb: type[fail_after] | type[exit_after]) -> None:
    """The scope would be over before the body begins: a limit that silently limits nothing."""

    def generator() -> Iterator[None]:
        yield

    async def coroutine() -> None: ...

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match="use it as a block inside"):
            verb(5, "a wait")(function)


def _tell_scopes(connection: Connection) -> None:
    connection.send((deadlines.remaining(), watcher.watcher()._waits.fatal()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("heart")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_has_no_open_waits(method: str) -> None:
    """A worker may live for hours after the block in which it was made."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    with ours, theirs, fail_after(60, "the making of workers"), exit_after(60, "the same", backed=False):
        child = context.Process(target=_tell_scopes, args=(theirs,))  # type: ignore[attr-defined]
        child.start()
        assert ours.poll(15)
        assert ours.recv() == (float("inf"), [])
        child.join()
        assert deadlines.remaining() < 60
    child.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_block_may_be_left_in_a_forked_child() -> None:
    """There is nothing left to close there."""
    with fail_after(60, "the outer"):
        with fail_after(60, "a fork"):
            child = os.fork()
        if child == 0:
            os._exit(0 if deadlines.remaining() == float("inf") else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="no SIGUSR2")
@pytest.mark.usefixtures("heart")
def test_an_error_of_a_signal_leaves_no_wait_open() -> None:
    """Wherever in the block, its beginning, or its end the signal arrives."""

    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        for scope in (fail_after(60, "a wait"), exit_after(60, "a wait", backed=False)):
            with pytest.raises(Interrupted), scope:
                os.kill(os.getpid(), signal.SIGUSR2)
            assert deadlines.remaining() == float("inf")
            assert watcher.watcher()._waits.fatal() == []
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("heart")
def test_an_error_while_a_wait_is_opened_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that was never entered is never left, and would end the process later."""
    opened = watcher.Watcher.open

    def interrupted(*args: object, **kwargs: object) -> None:
        opened(*args, **kwargs)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(watcher.Watcher, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), exit_after(60, "a wait", backed=False):
        pass
    assert watcher.watcher()._waits.fatal() == []


def test_a_wait_is_shown_to_the_supervisor_while_it_is_open(heart: Heart) -> None:
    """The earliest one, by name and deadline."""
    with exit_after(60, "the outer", backed=False), exit_after(5, "the inner", backed=False):
        assert heart.wait == b"the inner"
    assert (heart.wait, heart.deadline) == (b"", float("inf"))


def test_awake_time_goes_with_the_clock() -> None:
    """In a process that runs, and from the first call on."""
    first, lost = watcher.awake(), watcher.lost()
    assert watcher.awake() >= first
    assert watcher.lost() == lost
