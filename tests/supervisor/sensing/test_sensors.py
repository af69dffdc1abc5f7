"""Laws of what stands for a whole attempt: one rank of this machine, and the faults of its own time only."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from fluxguard import heartbeat
from fluxguard.clock import FakeClock
from fluxguard.heartbeat import Heart
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import learning
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing import gpu
from fluxguard.supervisor.sensing.gpu import Gpus, Seen
from fluxguard.supervisor.sensing.sensors import Sensors
from fluxguard.supervisor.showing import status
from tests.supervisor.histories import BEAT, history, look

ATTEMPT = Attempt(
    uuid="0b9f7c1e-0000-4000-8000-000000000001", number=1, start_step=0, log_from=0, at=0.0, keeper=None
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run whose heartbeats are in a folder of the test."""
    made = RunDir(tmp_path / "out")
    made.create()
    (tmp_path / "beats").mkdir()
    write_json(made.run, {"beats": str(tmp_path / "beats")})
    made.log.touch()
    return made


@pytest.fixture
def beats(run: RunDir) -> Callable[[int, int], None]:
    """Return what lets a rank beat at a step."""
    hearts: dict[int, Heart] = {}

    def beat(rank: int, step: int) -> None:
        if rank not in hearts:
            path = heartbeat.path_for(run.beats(), rank)
            hearts[rank] = Heart(path, rank=rank, attempt=uuid.UUID(ATTEMPT.uuid).bytes)
        hearts[rank].step = step
        hearts[rank].beat()

    return beat


@dataclass
class Cards:
    """The driver, as far as it has spoken."""

    said: list[str] = field(default_factory=list)

    def look(self, *, ask: bool = False) -> Seen:
        return Seen(xids=tuple(self.said[-2:]), heard=len(self.said))


def sensors(run: RunDir, cards: Cards | None = None) -> Sensors:
    return Sensors(run, ATTEMPT, FakeClock(), gpus=cast("Gpus", cards or Cards()))


def test_the_lowest_rank_of_this_machine_speaks(run: RunDir, beats: Callable[[int, int], None]) -> None:
    """Rank 0 may be on another machine; as soon as a lower one is heard here, it is that one."""
    sense = sensors(run)
    assert sense.look(sample=True).beat is None
    for rank, step in ((9, 5), (10, 6), (8, 7)):
        beats(rank, step)
        seen = sense.look(sample=True)
        assert seen.beat is not None
        assert (seen.beat.rank, seen.beat.step) == {9: (9, 5), 10: (9, 5), 8: (8, 7)}[rank]
    assert [beat.rank for beat in ATTEMPT.beats(run)] == [8, 9, 10]


def test_no_other_rank_speaks_while_the_one_that_does_cannot_be_read(
    run: RunDir, beats: Callable[[int, int], None]
) -> None:
    """Its place would be taken for that of the training."""
    sense = sensors(run)
    beats(0, 5)
    beats(1, 9)
    assert [beat.rank for beat in sense.look(sample=True).ranks] == [0, 1]
    heartbeat.path_for(run.beats(), 0).write_bytes(b"torn")
    seen = sense.look(sample=True)
    assert seen.beat is None
    assert [beat.rank for beat in seen.ranks] == [1]


def test_status_shows_the_rank_that_speaks(run: RunDir, beats: Callable[[int, int], None]) -> None:
    """On the second machine of a training too, where there is no rank 0."""
    book = Ledger(run.ledger, FakeClock())
    book.add("job", hardened=True, weights="w")
    book.add("attempt", attempt=ATTEMPT.uuid, number=1, start_step=0, log_from=0)
    beats(8, 7)
    beats(9, 8)
    seen = status.read(run)
    assert seen is not None
    assert seen.step == 7


def test_what_lies_between_the_beats_of_two_ranks_teaches_nothing() -> None:
    """It is no time that anything took: neither a step, nor a wait in a phase."""
    of_1 = [look(t, beat=replace(BEAT, rank=1, beats=t, step=t, at=float(t))) for t in (1, 2)]
    of_0 = [look(t, beat=replace(BEAT, rank=0, beats=t, step=t - 90, at=float(t))) for t in (100, 101, 200)]
    seen = history([*of_1, *of_0])
    assert learning.of_history(seen).progress == {"step": 1.0}
    assert seen.slowest_step == 99.0  # between two steps of rank 0
    assert history([*of_1, *of_0[:2]]).slowest_step == 1.0


def test_a_fault_of_before_explains_nothing_of_this_attempt(run: RunDir) -> None:
    """The sensor of the cards lives longer than an attempt."""
    cards = Cards(["Xid 79", "Xid 31"])
    sense = sensors(run, cards)
    assert sense.look(sample=True).xids == ()
    cards.said.append("Xid 13")
    assert sense.look().xids == ("Xid 13",)
    cards.said += ["Xid 14", "Xid 15"]
    assert sense.look().xids == ("Xid 14", "Xid 15")  # no more are remembered
    assert sensors(run, cards).look().xids == ()


@pytest.mark.parametrize(("heard", "new"), [(0, ("a", "b")), (5, ("b",)), (6, ()), (9, ())])
def test_only_what_came_later_is_new(heard: int, new: tuple[str, ...]) -> None:
    """Also when the sensor has forgotten the older ones, or counts anew."""
    assert gpu.since(Seen(xids=("a", "b"), heard=6), heard) == new
