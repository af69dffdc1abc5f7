"""Laws of the two verbs that need no process of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import deadlines
from fluxguard.guard.deadlines import Scopes, exit_after, fail_after
from fluxguard.limits import WaitLimits


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def scopes(clock: FakeClock) -> Scopes:
    return Scopes(clock)


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
def fresh_limits() -> object:
    deadlines.all_limits.cache_clear()
    yield
    deadlines.all_limits.cache_clear()


@pytest.mark.usefixtures("fresh_limits")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (json.dumps({"version": 1, "wait": {"block_swap": 7}}), 7.0),
        (json.dumps({"wait": {"block_swap": 0}}), 30.0),
        ("{", 30.0),
    ],
    ids=["set", "refused", "torn"],
)
def test_a_broken_limits_file_falls_back_to_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    """A file that cannot be read must not keep a training from starting."""
    path = tmp_path / "limits.json"
    path.write_text(text)
    monkeypatch.setenv("FLUXGUARD_LIMITS", str(path))
    assert deadlines.limits() == WaitLimits(block_swap=seconds)
