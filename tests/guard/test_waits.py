"""Laws of waiting for a job, in a process that is no trainer."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import Future

import pytest

import fluxguard
from fluxguard.errors import DeadlineExceeded


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


def test_a_cancelled_job_is_cancelled() -> None:
    """Cancellation passes through."""
    future: Future[None] = Future()
    future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        fluxguard.result(future)
