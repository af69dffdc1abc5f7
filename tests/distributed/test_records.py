"""Laws of what a rank brings to a meeting, and of when the ranks agree."""

from __future__ import annotations

import random

import pytest

from fluxguard.distributed.meetings.records import (
    CAME,
    FAILED,
    OVER,
    Record,
    failure,
    over,
    payloads,
    trouble,
    unpack,
)
from fluxguard.errors import RankFailed, RanksDisagree, RanksMissing

HERE = Record(kind="barrier", what="end of epoch", sequence=41, epoch=3, step=120)


@pytest.mark.parametrize(
    "record",
    [
        HERE,
        Record(kind="", what=""),
        Record(kind="decide", what="stop early?", payload=bytes(range(256)) * 4),
        Record(kind="barrier", what="\u00e9poque \U0001f40c", status=OVER, who=b"[1]", epoch=0, step=0),
    ],
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert unpack(record.pack()) == record


def test_a_long_name_is_cut_at_a_whole_character() -> None:
    """The same on every rank, so that it still agrees."""
    long = Record(kind="barrier", what="\u00e9" * 300)
    read = unpack(long.pack())
    assert read is not None
    assert read.what == "\u00e9" * 100


def test_what_is_no_record_is_none_and_never_raises() -> None:
    """A peer can send a wrong one."""
    chance = random.Random(6)
    whole = HERE.pack()
    assert unpack(b"") is None
    for length in range(len(whole)):
        cut = unpack(whole[:length])
        assert cut is None or cut != HERE
    for _ in range(500):
        unpack(bytes([1]) + chance.randbytes(chance.randrange(80)))


def test_ranks_that_came_to_the_same_bring_their_payloads() -> None:
    """How many collectives each has begun, and what it brings, is its own."""
    records = [HERE._replace(payload=b"a"), HERE._replace(payload=b"b" * 1024, sequence=7), HERE._replace(payload=b"")]
    assert payloads([record.pack() for record in records], HERE.common()) == [b"a", b"b" * 1024, b""]
    assert trouble(records, 0) is None


@pytest.mark.parametrize(
    "other",
    [
        HERE._replace(kind="decide"),
        HERE._replace(what="end of epoch 2"),
        HERE._replace(what="end of epoc"),
        HERE._replace(epoch=4),
        HERE._replace(step=121),
        HERE._replace(status=FAILED),
        HERE._replace(status=OVER),
        HERE._replace(who=b"me"),
    ],
)
def test_the_short_way_is_for_equals_alone(other: Record) -> None:
    """Whatever differs is looked at by itself, and so is who says who it is."""
    assert payloads([HERE.pack(), other.pack()], HERE.common()) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (HERE._replace(kind="decide"), "#41 decide 'end of epoch' (epoch 3, step 120)"),
        (HERE._replace(what="fid.compute", sequence=42), "#42 barrier 'fid.compute' (epoch 3, step 120)"),
        (HERE._replace(epoch=4), "#41 barrier 'end of epoch' (epoch 4, step 120)"),
        (HERE._replace(step=121), "#41 barrier 'end of epoch' (epoch 3, step 121)"),
        (None, "another version"),
    ],
)
def test_ranks_at_different_places_are_told_where_each_is(other: Record | None, said: str) -> None:
    """The same on every rank."""
    errors = [trouble([HERE, other], rank) for rank in (0, 1)]
    assert isinstance(errors[0], RanksDisagree)
    assert str(errors[0]) == str(errors[1])
    assert "rank 0 is at #41 barrier 'end of epoch' (epoch 3, step 120)" in str(errors[0])
    assert said in str(errors[0])


def test_what_a_rank_does_not_know_is_not_compared() -> None:
    """Only rank 0 may tell of its steps."""
    unknown = HERE._replace(epoch=None, step=None)
    assert trouble([HERE, unknown, HERE], 0) is None
    assert isinstance(trouble([HERE, unknown, HERE._replace(step=1)], 1), RanksDisagree)


def test_a_rank_that_failed_is_named_to_the_others_and_not_to_itself() -> None:
    """It raises its own error."""
    failed = HERE._replace(status=FAILED, payload=failure(OSError("the disk is full")))
    assert trouble([failed, HERE], 0) is None
    told = trouble([failed, HERE], 1)
    assert isinstance(told, RankFailed)
    assert (told.rank, told.kind, told.message, told.what) == (0, "OSError", "the disk is full", "end of epoch")


def test_a_long_message_is_cut() -> None:
    assert len(failure(OSError("\u00e9" * 5000))) < 1024


def test_who_comes_to_a_meeting_that_was_given_up_raises_the_same() -> None:
    """The rank that was missing, too: what it is told names it."""
    error = RanksMissing("barrier 'x' (#2; rank 1 did not come)", 3.0, [1], {1: "(pid 12) is in phase 'sampling'"})
    gone = HERE._replace(status=OVER, payload=over(error))
    again = trouble([gone, HERE], 1)
    assert isinstance(again, RanksMissing)
    assert (str(again), again.ranks, again.doing) == (str(error), error.ranks, error.doing)


@pytest.mark.parametrize(
    ("error", "kind"), [(RanksDisagree("different places"), RanksDisagree), (KeyboardInterrupt(), RankFailed)]
)
def test_who_left_for_another_reason_says_it(error: BaseException, kind: type[Exception]) -> None:
    assert isinstance(trouble([HERE, HERE._replace(status=OVER, payload=over(error))], 0), kind)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b'{"what": 1}', b'{"what": "x", "doing": 3}', b"\xff"])
def test_a_reason_that_cannot_be_read_is_still_an_error(payload: bytes) -> None:
    assert isinstance(trouble([HERE, HERE._replace(status=OVER, payload=payload)], 0), RankFailed)


def test_a_record_says_that_it_came_unless_told_otherwise() -> None:
    assert HERE.status == CAME


def test_who_disagrees_is_told_what_to_look_for() -> None:
    """Also where another rank was the one that saw it."""
    error = trouble([HERE, HERE._replace(what="elsewhere")], 0)
    assert "fluxguard scan" in str(error)
    told = trouble([HERE, HERE._replace(status=OVER, payload=over(error or KeyboardInterrupt()))], 0)
    assert str(told) == str(error)
