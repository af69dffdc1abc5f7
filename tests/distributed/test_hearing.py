"""Laws of what every rank does for itself: a failure of one is heard by all, by name, and is never waited for twice."""

from __future__ import annotations

import pytest

from fluxguard.distributed.meetings import meeting
from fluxguard.distributed.meetings.hearing import failure, hear, together
from fluxguard.distributed.meetings.meeting import PAYLOAD
from fluxguard.errors import RankFailed, RanksMissing


def test_what_another_rank_failed_in_is_raised_with_its_name() -> None:
    """The first of several."""
    with pytest.raises(RankFailed, match="rank 1 failed in 'the load': OSError: no disk") as failed:
        hear([b"", failure(OSError("no disk")), failure(ValueError("later"))], "the load")
    assert (failed.value.rank, failed.value.kind) == (1, "OSError")
    hear([b"", b""], "the load")


@pytest.mark.parametrize("message", ["long " * 1000, "\u00fc" * 5000, "\\" * 5000, ""])
def test_a_message_of_any_length_fits(message: str) -> None:
    """It is cut, and still read."""
    told = failure(ValueError(message))
    assert len(told) <= PAYLOAD
    with pytest.raises(RankFailed, match="ValueError"):
        hear([told], "it")


def test_the_own_error_is_raised_even_where_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says more than that others are missing."""

    def missing(*_: object, **__: object) -> list[bytes]:
        raise RanksMissing("it", 1.0, [1])

    monkeypatch.setattr(meeting, "meet", missing)
    with pytest.raises(ValueError, match="my own"), together("it"):
        raise ValueError("my own")


def test_an_error_that_every_rank_has_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wait for a rank that is missing would double the limit."""
    met: list[object] = []
    monkeypatch.setattr(meeting, "meet", lambda *given, **_: met.append(given))
    with pytest.raises(RanksMissing), together("it"):
        raise RanksMissing("a barrier inside", 1.0, [1])
    assert not met
