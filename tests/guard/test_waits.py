"""Laws of waiting for a job, in a process that is no trainer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

import fluxguard
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import waits
from fluxguard.heartbeat import Heart


def _failed(error: Exception) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future


def test_a_finished_job_is_not_waited_for() -> None:
    """A job that is done gives its result."""
    future: Future[int] = Future()
    future.set_result(3)
    assert fluxguard.result(future) == 3


def test_a_job_that_does_not_finish_raises_outside_of_a_trainer() -> None:
    """What was awaited, and for how long, is in the words."""
    with pytest.raises(DeadlineExceeded, match=r"block swap did not finish within 0\.02 s"):
        fluxguard.result(Future(), limit=0.02)


def test_an_earlier_scope_wins_over_the_limit_and_is_named() -> None:
    """Our own waits honour fail_after."""
    with pytest.raises(DeadlineExceeded, match="the whole step"), fluxguard.fail_after(0.02, "the whole step"):
        fluxguard.result(Future(), limit=60)


@pytest.mark.parametrize("kind", [concurrent.futures.TimeoutError, TimeoutError, KeyError])
def test_an_error_of_the_job_is_its_own(kind: type[Exception]) -> None:
    """A TimeoutError that the job raised is not taken for ours."""
    error = kind("from the job")
    with pytest.raises(kind) as caught:
        fluxguard.result(_failed(error), limit=0.02)
    assert caught.value is error


def test_a_job_that_ends_while_it_is_asked_for_gives_its_result() -> None:
    """Between the look and the question whether it is done."""

    class Late(Future[int]):
        def done(self) -> bool:
            if not super().done():
                self.set_result(3)
            return super().done()

    assert fluxguard.result(Late(), limit=0.02) == 3


@pytest.mark.parametrize("asked", ["result", "exception"])
def test_an_alarm_that_rings_in_the_wait_passes_through(asked: str) -> None:
    """What its handler raises is a TimeoutError too, and not taken for a job that still runs."""
    rung = DeadlineExceeded("reading a file", 3.0)

    class Interrupted(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if asked == "result":
                raise rung
            return super().result(timeout)

        def exception(self, timeout: float | None = None) -> BaseException | None:
            raise rung

    with pytest.raises(DeadlineExceeded) as caught:
        fluxguard.result(Interrupted(), limit=60)
    assert caught.value is rung


@pytest.mark.parametrize("limit", [1e300, threading.TIMEOUT_MAX * 2])
def test_a_limit_may_be_longer_than_the_system_can_wait(limit: float) -> None:
    """Then it is none."""
    future: Future[int] = Future()
    timer = threading.Timer(0.02, future.set_result, [3])
    timer.start()
    assert fluxguard.result(future, limit=limit) == 3
    timer.join()


def test_a_swap_that_was_waited_for_is_learned_from(heart: Heart) -> None:
    """In a step; one that failed is not, nor is another wait."""
    heart.phase = b"step"

    def waited(what: str, answer: Callable[[Future[int]], None]) -> float:
        future: Future[int] = Future()
        timer = threading.Timer(0.02, answer, [future])
        timer.start()
        with contextlib.suppress(KeyError):
            fluxguard.result(future, what)
        timer.join()
        return heart.longest_swap

    assert waited("block swap", lambda future: future.set_exception(KeyError())) == 0
    assert waited("another", lambda future: future.set_result(3)) == 0
    assert 0 < waited("block swap", lambda future: future.set_result(3)) < 30


def test_a_swap_in_which_the_machine_slept_is_not_learned_from(monkeypatch: pytest.MonkeyPatch, heart: Heart) -> None:
    """Its time says nothing."""
    heart.phase = b"step"
    future: Future[int] = Future()
    slept = iter([0.0, 3600.0])
    monkeypatch.setattr(waits, "lost", lambda: next(slept))
    timer = threading.Timer(0.02, future.set_result, [3])
    timer.start()
    assert fluxguard.result(future) == 3
    timer.join()
    assert heart.longest_swap == 0


def test_a_cancelled_job_is_cancelled() -> None:
    """Cancellation passes through."""
    future: Future[None] = Future()
    future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        fluxguard.result(future)


def test_a_picture_that_is_read_is_waited_for_and_one_that_failed_raises_its_own_error() -> None:
    """The file is only for the words."""
    future: Future[int] = Future()
    future.set_result(3)
    assert fluxguard.result(future, "image loading", file="a.png") == 3
    with pytest.raises(OSError, match="truncated"):
        fluxguard.result(_failed(OSError("truncated")), "image loading", file="a.png")


def test_an_earlier_scope_ends_the_wait_for_a_picture() -> None:
    """In every process, and without the file being blamed."""
    with pytest.raises(DeadlineExceeded, match="the folder"), fluxguard.fail_after(0.02, "the folder"):
        fluxguard.result(Future(), "image loading", file="a.png")


def test_an_executor_is_shut_down_after_all_its_jobs() -> None:
    """Queued ones too, as by its own method."""
    executor = ThreadPoolExecutor(1)
    jobs = [executor.submit(pow, 2, number) for number in range(20)]
    fluxguard.shutdown(executor)
    assert [job.result(0) for job in jobs] == [2**number for number in range(20)]
    with pytest.raises(RuntimeError):
        executor.submit(pow, 2, 2)


def test_an_executor_is_not_waited_for_a_second_time() -> None:
    """In a `finally`, under the error of a wait that was given up already."""
    executor, stuck = ThreadPoolExecutor(1), threading.Event()
    job = executor.submit(stuck.wait)

    def cache() -> None:
        try:
            fluxguard.result(job, "image loading", limit=0.02)
        finally:
            fluxguard.shutdown(executor)
            stuck.set()

    with pytest.raises(DeadlineExceeded, match="image loading"):
        cache()


def test_another_kind_of_executor_is_shut_down_its_own_way() -> None:
    """Nothing is known of its threads."""

    class Own(Executor):
        shut = False

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            self.shut = wait

    own = Own()
    fluxguard.shutdown(own)
    assert own.shut
