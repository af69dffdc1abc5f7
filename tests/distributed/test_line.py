"""Laws of the threads that alone use the store: whoever asks waits only as long as he likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fluxguard.distributed.meetings import beacon, meeting, sight
from fluxguard.distributed.meetings.beacon import Beacon
from fluxguard.distributed.meetings.hall import Hall
from fluxguard.distributed.meetings.line import Line, StoreGone
from fluxguard.distributed.meetings.records import Record, farewell, trouble, unpack
from fluxguard.errors import RankFailed

PATIENCE = 5.0
SOON = 0.01


class Shelf:
    """A store in this process; `let_go` frees whoever it holds."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.come = threading.Condition()
        self.stuck = False

    def set(self, key: str, value: bytes) -> None:
        with self.come:
            self.held[key] = value
            self.come.notify_all()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        with self.come:
            there = self.come.wait_for(lambda: all(key in self.held for key in keys) and not self.stuck, PATIENCE)
            if not there:
                raise RuntimeError("timed out")
            return [self.held[key] for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.held.pop(key, None) is not None

    def let_go(self) -> None:
        with self.come:
            self.stuck = False
            self.come.notify_all()


class Group:
    """A process group of two."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world = rank, 2

    def longer_timeout(self) -> float:
        return 0.0

    def timeout(self) -> float:
        return 1800.0


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    shelf.let_go()


def halls(shelf: Shelf) -> list[Hall]:
    return [Hall(Group(rank), lambda: shelf) for rank in (0, 1)]  # type: ignore[arg-type]


def close(both: list[Hall]) -> None:
    for one in reversed(both):
        one.close()


def test_what_the_thread_says_is_heard_and_what_it_does_not_say_is_not_waited_for(shelf: Shelf) -> None:
    line = Line("line", lambda: shelf)
    assert line.ask(lambda store: store.check(["a"]) or 7).within(PATIENCE) == 7
    shelf.stuck = True
    stuck = line.ask(lambda store: store.multi_get(["a"]))
    assert stuck.within(SOON) is None
    assert stuck.within(0) is None
    line.end()
    assert not line.ended(SOON)
    shelf.set("a", b"1")
    shelf.let_go()
    assert stuck.within(PATIENCE) == [b"1"]
    assert line.ended(PATIENCE)


def test_an_error_of_the_store_reaches_who_has_asked() -> None:
    """Also when there was no connection in the first place; and the next one is answered as well."""

    def none() -> Shelf:
        raise RuntimeError("refused")

    def broken(store: object) -> None:
        raise RuntimeError("reset")

    for line, words in ((Line("none", none), "refused"), (Line("broken", Shelf), "reset")):
        for _ in range(2):
            with pytest.raises(StoreGone, match=words):
                line.ask(broken).within(PATIENCE)
        line.end()
        assert line.ended(PATIENCE)


def test_what_comes_after_a_reply_is_not_waited_for_and_may_fail() -> None:
    line = Line("line", Shelf)
    done = threading.Event()

    def after(store: object) -> None:
        done.set()
        raise RuntimeError("gone meanwhile")

    assert line.ask(lambda store: 1, after).within(PATIENCE) == 1
    assert line.ask(lambda store: 2).within(PATIENCE) == 2
    assert done.is_set()
    line.end()
    assert line.ended(PATIENCE)


def test_a_rank_tells_of_itself_from_the_first_moment_on_and_again(shelf: Shelf) -> None:
    """Until that fails for the first time: a store that is gone fills the log otherwise."""
    told = threading.Semaphore(0)
    count = [0]

    def tell(store: object) -> None:
        told.release()
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("gone")

    line = Line("beacon", lambda: shelf, tell, SOON)
    assert all(told.acquire(timeout=PATIENCE) for _ in range(3))
    assert not told.acquire(timeout=5 * SOON)
    line.end()
    assert line.ended(PATIENCE)


def test_a_beacon_is_heard_with_who_it_is(shelf: Shelf) -> None:
    Beacon(1).tell(shelf)
    heard = beacon.hear(shelf, [0, 1])
    assert heard.keys() == {1}
    assert heard[1][0] == sight.own()
    assert heard[1][1] is not None


def test_a_thousand_meetings_leave_no_more_keys_than_a_hundred(shelf: Shelf) -> None:
    """A training has a million of them."""
    both = halls(shelf)
    sizes = []
    for number in range(1000):
        record = Record(kind="barrier", what="x").pack()
        replies = [hall.come(number, record) for hall in both]
        assert [reply.within(PATIENCE) for reply in replies] == [[record, record]] * 2
        sizes.append(len(shelf.held))
    assert max(sizes[200:]) <= max(sizes[:200])
    close(both)


def test_who_gives_up_wakes_those_who_wait_and_stops_those_who_come_later(shelf: Shelf) -> None:
    """At this meeting and the next, without another look into the store."""
    both = halls(shelf)
    over = Record(kind="barrier", what="x", status=2).pack()
    waiting = both[0].come(5, b"me")
    assert waiting.within(SOON) is None
    assert both[0].look(5, [1]).within(PATIENCE) == ((1,), both[0].look(5, [1]).within(PATIENCE).told)  # type: ignore[union-attr]
    both[0].give_up(5, over, [1]).within(PATIENCE)
    assert waiting.within(PATIENCE) == [over, over]
    assert both[1].come(5, b"late").within(PATIENCE) == [over, b"late"]
    assert both[1].come(6, b"later").within(PATIENCE) == [over, b"later"]
    close(both)


def test_the_rank_with_the_store_ends_when_the_others_have_read(shelf: Shelf) -> None:
    """Else the last barrier of a training would sometimes be an error of those who read a moment later."""
    both = halls(shelf)
    for hall in both:
        hall.number = 1
    first = both[0].come(0, b"a")
    closing = threading.Thread(target=both[0].close)
    closing.start()
    closing.join(5 * SOON)
    assert closing.is_alive()
    both[1].come(0, b"b")
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert first.within(0) == [b"a", b"b"]
    both[1].close()


def test_a_group_made_again_does_not_hear_what_was_said_in_the_one_before(shelf: Shelf) -> None:
    """Their store may be the same, and both count their meetings from 0."""
    first = halls(shelf)
    for hall in first:
        hall.come(0, b"old").within(SOON)
    close(first)
    again = [Hall(Group(rank), lambda: shelf, "group 2/") for rank in (0, 1)]  # type: ignore[arg-type]
    waiting = again[0].come(0, b"new")
    assert waiting.within(SOON) is None
    assert again[1].come(0, b"new").within(PATIENCE) == waiting.within(PATIENCE) == [b"new", b"new"]
    close(again)


@pytest.mark.parametrize(
    ("error", "words"), [(None, "rank 1 has left"), (ValueError("boom"), "rank 1 failed: ValueError: boom")]
)
def test_who_leaves_is_not_waited_for(shelf: Shelf, error: Exception | None, words: str) -> None:
    """Also by those who wait already, and although its process may live for long."""
    both = halls(shelf)
    waiting = both[0].come(0, Record(kind="barrier", what="x").pack())
    assert waiting.within(SOON) is None
    both[1].close(farewell(1, error))
    found = waiting.within(PATIENCE)
    assert found is not None
    assert words in str(trouble([unpack(one) for one in found], 0))
    both[0].close()


def test_an_interrupted_rank_waits_for_nobody(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a decision: the others hear of it when they come, and it is on its way out."""
    both = halls(shelf)
    monkeypatch.setattr(meeting, "hall", lambda: both[0])
    began = time.monotonic()
    meeting.fail("decide", "stop", KeyboardInterrupt())
    assert time.monotonic() - began < PATIENCE
    found = both[1].come(0, b"").within(PATIENCE)
    assert found is not None
    assert "rank 0 failed in 'stop': KeyboardInterrupt" in str(trouble([unpack(one) for one in found], 1))
    with pytest.raises(RankFailed):
        meeting.meet("barrier", "next")
    close(both)
