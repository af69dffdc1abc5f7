"""Laws of the newest state: all ranks choose the same one, which every one of them has whole."""

from __future__ import annotations

import pytest

from fluxguard.distributed.meetings.meeting import PAYLOAD
from fluxguard.distributed.saving.agreeing import Verdict, newest_of_all, refused
from fluxguard.errors import StateUnusable
from tests.distributed.lockstep import Meetings

Disk = dict[int, str]
"""By step: the identity of the state, or, after a !, what is wrong with it."""


def chosen(disks: list[Disk]) -> tuple[int | None, list[str]]:
    """Return what every one of these ranks chooses, and why newer ones were passed over."""
    meetings = Meetings(len(disks))

    def look(disk: Disk, step: int) -> str:
        if disk[step].startswith("!"):
            raise StateUnusable("state", disk[step][1:])
        return disk[step]

    def of_rank(rank: int) -> tuple[int | None, list[str]]:
        return newest_of_all(
            list(disks[rank]), lambda step: look(disks[rank], step), lambda _, said: meetings.exchange(rank, said)
        )

    first, *others = meetings.run(of_rank)
    assert all(other == first for other in others)
    assert meetings.longest <= PAYLOAD
    return first


ALL = {4: "a", 8: "b", 12: "c"}


@pytest.mark.parametrize(
    ("disks", "step", "passed"),
    [
        ([{}, {}], None, []),
        ([ALL, ALL], 12, []),
        ([ALL], 12, []),
        ([ALL, {4: "a", 8: "b"}], 8, ["step 12 is not with rank 1"]),
        ([{4: "a", 12: "c"}, {4: "a", 8: "b"}], 4, ["step 12 is not with rank 1", "step 8: it is not there (rank 0)"]),
        ([ALL, ALL, ALL | {12: "!torn"}], 8, ["step 12: torn (rank 2)"]),
        ([ALL | {12: "!torn"}] * 2 + [ALL], 8, ["step 12: torn (ranks 0, 1)"]),
        ([ALL, ALL | {12: "x"}], 8, ["step 12: rank 1 and rank 0 hold different states"]),
        ([ALL, {}], None, ["step 12 is not with rank 1"]),
        ([{8: "!torn"}, {8: "b"}], None, ["step 8: torn (rank 0)"]),
        ([{8: "!torn"}, {8: "!gone"}], None, ["step 8: gone (rank 1); torn (rank 0)"]),
    ],
)
def test_the_newest_that_all_have_whole_is_chosen(disks: list[Disk], step: int | None, passed: list[str]) -> None:
    """And what was passed over is named, with the ranks."""
    assert chosen(disks) == (step, passed)


@pytest.mark.parametrize("word", ["long ", "\u0436", "\U0001f525", "\udcff"])
def test_a_long_reason_is_cut(word: str) -> None:
    """What a rank may say at a meeting is short, whatever the letters."""
    step, (why,) = chosen([{4: "!" + word * 1000}, {4: "a"}])
    assert step is None
    assert len(why) < PAYLOAD


def test_one_that_all_have_alike_is_not_refused() -> None:
    """Identity decides, not the bytes: each machine's graphics card may round otherwise."""
    assert refused(4, [Verdict(identity="a")] * 3) == ""
