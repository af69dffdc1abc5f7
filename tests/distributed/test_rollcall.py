"""Laws of the roll call: what is wrong is named once, in the same words for all; nothing old is taken for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from fluxguard.distributed.start import rollcall
from fluxguard.distributed.start.assembly import SAID_AFTER, Call, Verdict, heard, is_called_by_the_living
from fluxguard.distributed.start.rollcall import Problem, Record
from tests.distributed.shelf import Shelf

LIMIT = 10.0


def record(rank: int, size: int = 2, **known: object) -> Record:
    given = {"host": "node-a", "boot": "b", "pid": 100 + rank, "torch": "2.5", "python": "3.11", "nonce": f"n{rank}"}
    return replace(Record(rank=rank, size=size, nonce="", host=""), **{**given, "local_rank": rank, **known})  # type: ignore[arg-type]


def three(**last: object) -> list[Record]:
    return [record(0, 3), record(1, 3), record(2, **{"size": 3, **last})]  # type: ignore[arg-type]


def test_ranks_that_are_alike_work_together() -> None:
    """Each on a machine and a device of its own, or on a processor with others."""
    assert rollcall.judge(three()) is None
    assert rollcall.judge([record(0, device="GPU-a"), record(1, device="GPU-b", host="node-b")]) is None
    assert rollcall.judge([record(0), record(1, python="3.12", local_rank=0)]) is None


@pytest.mark.parametrize(
    ("last", "variable", "words"),
    [
        ({"size": 4}, "WORLD_SIZE", "is 4, but 3 on rank 0"),
        ({"torch": "2.4"}, "torch", "is 2.4, but 2.5"),
        ({"nccl": "2.18"}, "NCCL", "is 2.18, but none"),
        ({"backend": "gloo"}, "backend", "is gloo"),
        ({"settings": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}, "TORCH_DISTRIBUTED_DEBUG", "'DETAIL', but not set"),
        ({"settings": {"NCCL_P2P_DISABLE": "1"}}, "NCCL_P2P_DISABLE", "'1', but not set"),
    ],
)
def test_one_that_differs_is_named_with_what_differs(last: dict[str, object], variable: str, words: str) -> None:
    """And with what the others have."""
    problem = rollcall.judge(three(**last))
    assert problem is not None
    assert (problem.variable, problem.rank) == (variable, 2)
    assert words in problem.reason
    assert problem.error().variable == variable


def test_two_trainings_that_met_by_mistake_are_told_apart() -> None:
    """By their program; a rank that does not know its own is no other."""
    problem = rollcall.judge([record(0, program="a.py"), record(1, program="b.py")])
    assert problem is not None
    assert (problem.variable, problem.rank) == ("program", 1)
    assert "is b.py, but a.py on rank 0" in problem.reason
    assert rollcall.judge([record(0, program="a.py"), record(1)]) is None


def test_other_arguments_are_remarked_and_refused_to_nobody() -> None:
    """By their names: a rank may well be told a number of its own. Their values are told to nobody."""
    one, other = {"lr": "d1", "epochs": "d2"}, {"lr": "d3", "epochs": "d2", "amp": "d4"}
    ranks = [record(0, program="a.py", arguments=one), record(1, program="a.py", arguments=other)]
    assert rollcall.judge(ranks) is None
    assert (
        "rank 1 on node-a was started with other arguments than rank 0 on node-a (amp, lr);"
        in rollcall.remarks(ranks)[0]
    )


def test_the_few_are_named_and_not_the_many() -> None:
    """Also when rank 0 is one of them; where there are as many of each, those who are not as rank 0."""
    odd = rollcall.judge([record(0, 3, torch="2.4"), record(1, 3), record(2, 3)])
    assert odd is not None
    assert odd.rank == 0
    even = rollcall.judge([record(0, torch="2.4"), record(1)])
    assert even is not None
    assert even.rank == 1


def test_two_ranks_on_one_device_are_both_named() -> None:
    """With what they see; whatever their containers are called."""
    problem = rollcall.judge(
        [record(0, device="GPU-a"), record(1, device="GPU-a", visible="0", host="pod-b", local_rank=0)]
    )
    assert problem is not None
    assert problem.variable == "CUDA_VISIBLE_DEVICES"
    assert "rank 0 on node-a use the GPU GPU-a" in problem.reason


def test_a_rank_that_sees_no_gpu_among_those_that_do_is_named() -> None:
    """Because it would speak gloo to them."""
    problem = rollcall.judge([record(0, backend="nccl"), record(1, backend="gloo", visible="")])
    assert problem is not None
    assert "rank 1 on node-a sees no GPU (CUDA_VISIBLE_DEVICES there is ''" in problem.reason


def test_what_is_unusual_and_harmless_is_only_remarked() -> None:
    """Another Python; one local rank twice."""
    said = rollcall.remarks([record(0), record(1, python="3.12", local_rank=0)])
    assert len(said) == 2
    assert rollcall.remarks(three()) == []


def test_machines_are_counted_by_their_ranks() -> None:
    """A container is a machine of its own."""
    assert rollcall.machines([record(0, 3), record(1, 3, host="pod"), record(2, 3)]) == [0, 1, 0]


def test_a_record_goes_through_text() -> None:
    """Of a newer version too; what is none is refused."""
    one = record(1, settings={"NCCL_NET": "IB"}, visible="0")
    assert Record.from_text(one.to_text()) == one
    assert Record.from_text(one.to_text()[:-1] + ', "newer": 1}') == one
    for text in ("{}", "[1]", "x"):
        with pytest.raises(ValueError, match=r"record|Expecting"):
            Record.from_text(text)


class Room:
    """Ranks at a roll call in one store, each of which looks when it is told to."""

    def __init__(self, shelf: Shelf | None = None) -> None:
        self.shelf = shelf or Shelf()
        self.living: set[str] = set()
        self.words = 0

    def call(self, one: Record, **known: object) -> Call:
        self.words += 1
        word = f"{one.nonce}-w{self.words}"
        lives = lambda other: other.nonce in self.living and other.nonce != one.nonce  # noqa: E731
        given = {"limit": LIMIT, "began": 0.0, "door": "a:1", "lives": lives, **known}
        return Call(self.shelf, one, word=word, **given)  # type: ignore[arg-type]

    def verdicts(self, calls: list[Call], until: float = LIMIT) -> list[Verdict]:
        """Let all look in turn, as time passes."""
        found: list[Verdict | None] = [None] * len(calls)
        now = 0.0
        while None in found:
            found = [seen or call.look(now) for seen, call in zip(found, calls, strict=True)]
            assert now <= until, "nobody waits longer than the limit"
            now += 1.0
        return [one for one in found if one is not None]


def problem_of(verdicts: list[Verdict]) -> Problem:
    """Return the problem that all have been told."""
    first = verdicts[0].problem
    assert first is not None
    assert all(one.problem == first for one in verdicts)
    return first


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_all_who_come_get_the_same_good_verdict(order: list[int]) -> None:
    """Whoever comes first."""
    room = Room()
    found = room.verdicts([room.call(record(rank, 3)) for rank in order])
    assert {one.problem for one in found} == {None}
    assert len({one.session for one in found}) == 1
    assert found[0].nonces == ("n0", "n1", "n2")
    assert found[0].machines == (0, 0, 0)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_what_was_left_by_an_earlier_round_is_no_answer(order: list[int]) -> None:
    """Good or bad, judged or not: its ranks are dead, and the launcher kept the store."""
    shelf = Shelf()
    for earlier in (
        [record(0), record(1)],
        [record(0), record(1, torch="2.4")],
        [record(0)],
        [record(0, 4), record(1, 4)],
    ):
        room = Room(shelf)
        for call in [room.call(replace(one, nonce=f"old-{room.words}")) for one in earlier]:
            for now in range(3):
                call.look(float(now))
    room = Room(shelf)
    found = room.verdicts([room.call(record(rank)) for rank in order])
    assert {one.problem for one in found} == {None}
    assert found[0].nonces == ("n0", "n1")
    assert found[0].session == found[1].session


def test_a_stale_failure_is_not_taken_for_ours() -> None:
    """A rank that comes before rank 0 finds the verdict of the round before."""
    shelf, now = Shelf(), 0.0
    old = Room(shelf)
    old.verdicts([old.call(record(0, nonce="x")), old.call(record(1, torch="2.4", nonce="y"))])
    room = Room(shelf)
    early = room.call(record(1))
    for now in (0.0, 1.0, 2.0):
        assert early.look(now) is None
    main = room.call(record(0))
    main.look(now)
    assert early.look(now) is None
    assert main.look(now) is not None
    found = early.look(now)
    assert found is not None
    assert found.problem is None


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_worlds_of_different_size_are_one_error_on_all(order: list[int]) -> None:
    """Also where the larger world has ranks that the smaller one does not know."""
    room = Room()
    records = [record(0), record(2, 3)]
    problem = problem_of(room.verdicts([room.call(records[number]) for number in order]))
    assert (problem.variable, problem.rank) == ("WORLD_SIZE", 2)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
def test_two_processes_of_one_rank_are_both_named(order: list[int]) -> None:
    """On every rank."""
    room = Room()
    records = [record(0, 3), record(1, 3), record(1, 3, nonce="twin", pid=999, host="node-b")]
    problem = problem_of(room.verdicts([room.call(records[number]) for number in order]))
    assert (problem.variable, problem.rank) == ("RANK", 1)
    assert "process 999 on node-b" in problem.reason
    assert "process 101 on node-a" in problem.reason


def test_two_processes_of_rank_0_are_both_named() -> None:
    """In the store of a launcher, which both can open a session in."""
    room = Room()
    twins = [record(0), record(0, nonce="twin", pid=999)]
    problem = problem_of(room.verdicts([room.call(one) for one in twins]))
    assert problem.variable == "RANK"


def test_a_second_process_that_comes_after_the_roll_call_is_told_who_has_its_rank() -> None:
    """As far as that process is seen to live; whoever has passed the roll call is not disturbed."""
    room = Room()
    first = room.verdicts([room.call(record(0)), room.call(record(1))])
    assert first[0].problem is None
    room.living = {"n0", "n1"}
    for rank in (0, 1):
        late = room.call(record(rank, nonce="twin", pid=999)).look(0.0)
        assert late is not None
        assert late.problem is not None
        assert (late.problem.variable, late.problem.rank) == ("RANK", rank)


def test_a_second_process_that_comes_in_the_moment_of_the_verdict_is_not_taken_for_the_first() -> None:
    """The good verdict knows who has its rank."""
    room = Room()
    main, first = room.call(record(0)), room.call(record(1))
    assert main.look(0.0) is None
    assert first.look(0.0) is None

    class Slow(Shelf):
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            if "/claim/" in key:
                assert main.look(1.0) is not None
            return super().compare_set(key, expected, desired)

    slow = Slow()
    slow.kept = room.shelf.kept
    twin = Room(slow).call(record(1, nonce="twin", pid=999)).look(1.0)
    assert twin is not None
    assert twin.problem is not None
    assert twin.problem.variable == "RANK"


@pytest.mark.parametrize("skew", [0.0, 4.0])
def test_a_rank_that_does_not_come_is_named_by_all_others(skew: float) -> None:
    """Within the limit, whoever of them came first; one that comes then is told the same."""
    room = Room()
    calls = [room.call(record(rank, 3), began=skew if rank else 0.0) for rank in (0, 2)]
    problem = problem_of(room.verdicts(calls))
    assert (problem.variable, problem.rank) == ("WORLD_SIZE", 1)
    assert "rank 1 did not come to a:1 within 10 s (2 of 3 did)" in problem.reason
    late = room.call(record(1, 3))
    assert late.look(0.0) is None
    since = 11.0
    calls[0].told(Verdict(problem=problem), since, since)
    found = late.look(1.0)
    assert found is not None
    assert found.problem == problem


def test_without_rank_0_the_others_name_it() -> None:
    """It alone calls the roll."""
    room = Room()
    problem = problem_of(room.verdicts([room.call(record(1, 2))]))
    assert (problem.variable, problem.rank) == ("RANK", 0)


def test_when_rank_0_dies_in_the_roll_call_the_others_name_it() -> None:
    """They see that it looks no more."""
    room = Room()
    room.call(record(0, 3)).look(0.0)
    problem = problem_of(room.verdicts([room.call(record(1, 3))]))
    assert problem.rank == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_wrong_with_one_rank_is_said_by_all(rank: int) -> None:
    """It goes to the roll call to tell it."""
    room = Room()
    own = Problem(source=f"rank {rank} on node-a", variable="LOCAL_RANK", reason="is 3", rank=rank)
    calls = [room.call(record(one), own=own if one == rank else None) for one in (0, 1)]
    assert problem_of(room.verdicts(calls)) == own


def test_what_is_wrong_with_a_process_without_a_rank_is_said_by_all() -> None:
    """It can only object, to whichever roll call there is."""
    room = Room()
    own = Problem(source="process 7 on node-b", variable="RANK", reason="is missing")
    assert not heard(room.shelf, own)
    call = room.call(record(0))
    assert call.look(0.0) is None
    assert not heard(room.shelf, own)
    found = call.look(1.0)
    assert found is not None
    assert found.problem == own
    assert heard(room.shelf, own)


@pytest.mark.parametrize(("living", "ours"), [(True, True), (False, False)])
def test_a_port_that_is_taken_by_our_own_roll_call_is_told_from_one_of_others(living: bool, ours: bool) -> None:
    """Then two processes have rank 0, and no other training has the port."""
    room = Room()
    room.call(record(0)).look(0.0)
    lives: Callable[[Record], bool] = lambda one: living  # noqa: E731
    assert is_called_by_the_living(room.shelf, lives, until=0.0) is ours
    assert not is_called_by_the_living(Shelf(), lives, until=0.0)


class Waits:
    """A patience of so many times 10 s; who it was asked for is kept."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: list[tuple[int, ...]] = []

    def more(self, missing: Iterable[int]) -> float:
        self.asked.append(tuple(missing))
        self.times -= 1
        return LIMIT if self.times >= 0 else 0.0


@pytest.mark.parametrize("absent", [0, 1])
def test_who_may_still_come_is_waited_for(absent: int) -> None:
    """Rank 0, without whom there is no roll call, and any other; who is there then is not late."""
    room = Room()
    here, late = (record(rank) for rank in (1 - absent, absent))
    waits = Waits(2)
    early = room.call(here, more=waits.more)
    assert not any(early.look(float(now)) for now in range(25))
    assert waits.asked == [(absent,), (absent,)]
    latecomer = room.call(late, began=25.0)
    found = [call.look(now) for now in (25.0, 26.0, 27.0) for call in (latecomer, early)]
    assert {one.problem for one in found if one} == {None}
    assert len([one for one in found if one]) >= 2


def test_for_whom_a_rank_waits_is_said_once_before_the_limit() -> None:
    """By who came in time, and by who sees no roll call at all."""
    for absent, whom in ((0, "rank 0"), (1, "rank 1, 2")):
        told: list[str] = []
        call = Room().call(record(1 if absent == 0 else 0, 3), awaited=told.append, limit=4 * SAID_AFTER)
        for now in (0.0, SAID_AFTER - 1, SAID_AFTER, 2 * SAID_AFTER):
            call.look(now)
            assert told == ([whom] if now >= SAID_AFTER else [])


def test_who_does_not_come_after_all_is_named_with_the_whole_time() -> None:
    room = Room()
    waits = Waits(1)
    calls = [room.call(record(0, 3), more=waits.more), room.call(record(2, 3), more=waits.more, began=-1.0)]
    problem = problem_of(room.verdicts(calls, until=3 * LIMIT))
    assert (problem.variable, problem.rank) == ("WORLD_SIZE", 1)


def test_a_rank_0_that_dies_while_another_one_is_waited_for_is_named() -> None:
    """It looked once, and then no more: what was seen before does not count for ever."""
    room = Room()
    main, waits = room.call(record(0, 3)), Waits(1)
    other = room.call(record(1, 3), more=waits.more)
    for now in (0.0, 1.0, 2.0):
        assert main.look(now) is other.look(now) is None
    problem = problem_of(room.verdicts([other], until=3 * LIMIT))
    assert problem.rank == 0
    assert waits.asked == [(2,), (0,)]
