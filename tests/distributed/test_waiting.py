"""Laws of one rank's wait for the others, without any: what it sees is given, and so is the time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from fluxguard import limits
from fluxguard.distributed.meetings import sight, waiting
from fluxguard.distributed.meetings.hall import Look
from fluxguard.distributed.meetings.line import Reply
from fluxguard.distributed.meetings.records import Record
from fluxguard.distributed.meetings.sight import DEAD, LIVES, STOPPED, Who, Word
from fluxguard.distributed.meetings.waiting import Waiting
from fluxguard.errors import RanksMissing

RECORD = Record(kind="barrier", what="end of epoch", sequence=7)
LIMIT = 10.0


class Place:
    """A hall of three ranks, of which this is the second."""

    rank, size = 1, 3
    longer, timeout = 0.0, 1800.0

    def __init__(self) -> None:
        self.known = {rank: Who(pid=100 + rank, ticks=0, machine="m", host="node-b") for rank in range(3)}
        self.missing: tuple[int, ...] = (2,)
        self.words: dict[int, Word] = {}
        self.answers = True
        self.asked: list[tuple[int, ...]] = []

    def look(self, number: int, ranks: Iterable[int]) -> Reply[Look]:
        """As a hall does; the answer is there at once, or never."""
        self.asked.append(tuple(ranks))
        reply: Reply[Look] = Reply()
        if self.answers:
            told: Any = {rank: (self.known[rank], self.words.get(rank)) for rank in self.missing}
            reply.say(Look(self.missing, told), None)
        return reply


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Say which processes live, by pid; all do."""
    known: dict[int, str] = {}
    monkeypatch.setattr(sight, "life_of", lambda who: known.get(who.pid, LIVES) if who else sight.UNKNOWN)
    return known


def wait(place: Any, limit: float | None = LIMIT) -> Waiting:
    return Waiting(place, 3, RECORD, limit, 1000.0)


def seconds_until_it_gives_up(waits: Waiting, until: float = 60.0) -> tuple[float, RanksMissing]:
    """Look four times a second, and return when it had enough, and why."""
    for quarter in range(int(4 * until)):
        try:
            waits.look(1000.0 + quarter / 4)
        except RanksMissing as error:
            return quarter / 4, error
    pytest.fail("it waits for ever")


def test_at_the_limit_the_missing_are_named_with_what_they_do(lives: dict[int, str]) -> None:
    place = Place()
    place.words[2] = Word(phase="", sequence=6, kind="collective", what="fid.compute", age=3.0, open=True)
    waited, error = seconds_until_it_gives_up(wait(place))
    assert waited == LIMIT
    assert error.ranks == (2,)
    assert "barrier 'end of epoch' (#7; rank 2 did not come) did not finish within 10 s" in str(error)
    assert "rank 2 (pid 102 on node-b)" in str(error)
    assert "in #6 collective 'fid.compute'" in error.doing[2]


def test_only_those_are_looked_for_again_that_were_missing(lives: dict[int, str]) -> None:
    """A thousand ranks are not asked for four times a second."""
    place = Place()
    seconds_until_it_gives_up(wait(place))
    assert place.asked[0] == (0, 2)
    assert set(place.asked[1:]) == {(2,)}


def test_a_dead_process_is_named_within_a_second(lives: dict[int, str]) -> None:
    """And it alone: the others may be on their way."""
    place = Place()
    place.missing = (0, 2)
    lives[102] = DEAD
    waited, error = seconds_until_it_gives_up(wait(place))
    assert waited <= 0.5
    assert error.ranks == (2,)
    assert error.seconds is None


def test_who_came_before_it_died_is_not_missing(lives: dict[int, str]) -> None:
    """Its record is in the store: a look that was asked for before its death does not count."""
    place = Place()
    waits = wait(place)
    waits.look(1000.0)
    lives[102] = DEAD
    place.missing = ()
    waits.look(1000.25)
    waits.look(1000.5)


def test_a_stopped_process_gets_the_limit_whatever_its_phase_would_allow(lives: dict[int, str]) -> None:
    place = Place()
    place.words[2] = Word(beats=5, phase="sampling")
    lives[102] = STOPPED
    waited, error = seconds_until_it_gives_up(wait(place))
    assert LIMIT <= waited <= LIMIT + 0.5
    assert "is stopped" in str(error)


def test_beats_begin_the_limit_anew(lives: dict[int, str]) -> None:
    """Late is not missing."""
    place = Place()
    waits = wait(place)
    for quarter in range(120):
        place.words[2] = Word(beats=quarter, phase="step", number=quarter)
        waits.look(1000.0 + quarter / 4)
    for second in (30, 29 + LIMIT):
        waits.look(1000.0 + second)
    with pytest.raises(RanksMissing):
        waits.look(1000.0 + 30 + LIMIT)


def test_a_rank_that_samples_may_be_silent_as_long_as_sampling_may_last(
    lives: dict[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    """While it is waited for, the log says for whom, once in every limit."""
    place = Place()
    waits = wait(place)
    with caplog.at_level(logging.WARNING):
        for quarter in range(4 * 25):
            place.words[2] = Word(beats=5, phase="sampling", number=quarter)
            waits.look(1000.0 + quarter / 4)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "has waited 10 s and goes on: rank 2 (pid 102 on node-b) is in phase 'sampling'" in said[0]


def test_a_store_that_does_not_answer_is_bounded_too(lives: dict[int, str]) -> None:
    """Who is seen to be stopped is named, else the rank in whose process the store is."""
    place = Place()
    place.answers = False
    waited, error = seconds_until_it_gives_up(wait(place))
    assert waited == LIMIT
    assert error.ranks == (0,)
    assert "does not answer" in str(error)
    lives[102] = STOPPED
    assert seconds_until_it_gives_up(wait(place))[1].ranks == (2,)


def test_a_store_that_does_not_answer_is_not_waited_for_as_long_as_some_phase_may_last(lives: dict[int, str]) -> None:
    """The signs of life of the others say nothing about it: they may wait for it, too."""
    place = Place()
    place.words = dict.fromkeys((0, 2), Word(beats=5, phase="sampling"))
    waits = wait(place)
    waits.look(1000.0)
    waits.look(1000.25)
    place.answers = False
    waits.look(1000.5)
    for quarter in range(3, 4 * int(LIMIT)):
        waits.look(1000.0 + quarter / 4)
    with pytest.raises(RanksMissing, match="does not answer"):
        waits.look(1000.75 + LIMIT)


def test_rank_0_is_not_blamed_for_the_store_of_its_launcher(
    lives: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen to live: the launcher is stopped, or cut off."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    place = Place()
    place.answers = False
    error = seconds_until_it_gives_up(wait(place))[1]
    assert error.ranks == ()
    assert "in the launcher on rank 0's machine, does not answer" in str(error)
    lives[100] = sight.UNKNOWN
    assert seconds_until_it_gives_up(wait(place))[1].ranks == (0,)


def test_records_that_are_all_there_and_are_not_read_are_the_stores_fault(lives: dict[int, str]) -> None:
    """The other connection, on which they are waited for, may be cut."""
    place = Place()
    place.missing = ()
    waited, error = seconds_until_it_gives_up(wait(place))
    assert LIMIT <= waited <= LIMIT + 1
    assert "does not answer" in str(error)


def test_of_whom_nothing_is_seen_gets_almost_the_timeout_of_the_group_unless_somebody_chose(
    lives: dict[int, str],
) -> None:
    """As in the guard's own barrier: it may work for all that anybody knows."""
    place = Place()
    assert seconds_until_it_gives_up(wait(place), 20)[0] == LIMIT
    with limits.use(barrier=5.0):
        assert seconds_until_it_gives_up(wait(place, None), 20)[0] == 5.0
    waits = wait(place, None)
    waits.look(1000.0)
    waits.look(1000.25)
    waits.look(2700.0)
    with pytest.raises(RanksMissing):
        waits.look(2711.0)


def test_who_tells_of_no_phase_may_work_for_all_that_anybody_knows(lives: dict[int, str]) -> None:
    """A loop need not know of phases: neither is it ended while it caches, nor does it get what some phase may."""
    place = Place()
    place.words[2] = Word(beats=1)
    with limits.use(barrier=5.0):
        assert seconds_until_it_gives_up(wait(place, None), 20)[0] == pytest.approx(5.0, abs=0.5)
    waits = wait(place, None)
    waits.look(1000.0)
    waits.look(1000.25)
    waits.look(2700.0)
    with pytest.raises(RanksMissing):
        waits.look(2711.0)


def test_without_a_limit_it_waits_for_ever_for_the_living(lives: dict[int, str]) -> None:
    with limits.use(barrier=None):
        waits = wait(Place(), None)
    for day in range(3):
        waits.look(1000.0 + day * 86_400)
    lives[102] = DEAD
    waits.look(400_000.0)
    with pytest.raises(RanksMissing):
        waits.look(400_000.25)


def test_the_host_of_the_store_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert "launcher" in waiting._where()
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert "rank 0" in waiting._where()
