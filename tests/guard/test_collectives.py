"""Laws of the notes about collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard import heartbeat
from fluxguard.guard import collectives, pulse
from fluxguard.guard.collectives import noted
from fluxguard.heartbeat import Collective, Heart


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have noted nothing before."""
    monkeypatch.setattr(collectives, "_known", collectives._Noted())


def written(heart: Heart) -> Collective:
    """Return what a reader of the heartbeat sees."""
    beat = heartbeat.unpack(heart._map[:])  # type: ignore[index]
    assert beat is not None
    assert beat.collective is not None
    return beat.collective


def test_a_collective_is_open_within_its_block_and_done_after(heart: Heart) -> None:
    """Both can be seen from outside."""
    with noted("barrier", "end of epoch") as one:
        seen = written(heart)
        assert (seen.sequence, seen.kind, seen.what, seen.open) == (1, "barrier", "end of epoch", True)
    assert one.sequence == 1
    assert written(heart) == replace(seen, open=False, depth=0)


def test_each_has_the_next_number(heart: Heart) -> None:
    """Whatever kind it is of."""
    for number, kind in enumerate(("barrier", "decide", "metric"), 1):
        with noted(kind, "") as one:
            assert one.sequence == written(heart).sequence == number
    assert collectives.begun() == 3


def test_an_error_is_noted_and_passes(heart: Heart) -> None:
    """A collective that was left in the middle is neither open nor done."""
    with pytest.raises(ValueError, match="no"), noted("barrier", ""):
        raise ValueError("no")
    assert (written(heart).open, written(heart).failed) == (False, True)


def test_what_a_collective_is_part_of_goes_on_after_it(heart: Heart) -> None:
    """A barrier within a metric: the metric is open again, and further than one that is still in the barrier."""
    with noted("metric", "fid.compute"):
        with noted("barrier", "sync"):
            within = written(heart)
        after = written(heart)
    done = written(heart)
    assert (within.sequence, within.what, within.open) == (2, "sync", True)
    assert (after.sequence, after.what, after.open) == (1, "fid.compute", True)
    assert within.place < after.place < done.place
    with noted("barrier", "next"):
        assert written(heart).sequence == 3
        assert written(heart).place > done.place


def test_two_that_overlap_end_in_any_order(heart: Heart) -> None:
    """As those of two threads do."""
    first, second = noted("barrier", "first"), noted("barrier", "second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None)
    assert (written(heart).what, written(heart).open) == ("second", True)
    second.__exit__(None)
    assert (written(heart).what, written(heart).open) == ("second", False)


def test_what_others_are_told_is_what_the_heartbeat_shows(heart: Heart) -> None:
    """A rank of another machine sees no heartbeat."""
    assert collectives.last() is None
    with noted("barrier", "end of epoch"):
        assert collectives.last() == written(heart)
    assert collectives.last() == written(heart)


def test_without_a_heart_only_the_number_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens, and ranks still compare their numbers."""
    monkeypatch.setattr(pulse._trainer, "heart", None)
    with noted("barrier", "") as one:
        assert one.sequence == 1
    with noted("barrier", "") as one:
        assert one.sequence == 2


def test_words_of_any_kind_and_length_are_noted(heart: Heart) -> None:
    """Of long ones what there is room for; a lone surrogate is no error."""
    with noted("k" * 40, "x\ud800" + "w" * 200):
        seen = written(heart)
    assert seen.kind == "k" * 16
    assert seen.what == "x?" + "w" * 62
