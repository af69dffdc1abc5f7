"""Laws of what the trainer tells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fluxguard import heartbeat
from fluxguard.guard import pulse
from fluxguard.heartbeat import Heart
from fluxguard.limits import WaitLimits
from fluxguard.supervisor.detecting.troubles import of_beat
from tests.supervisor.histories import BEAT


class Bar(list[str]):
    """A progress bar over a list."""

    total = 3


def test_items_are_counted_as_they_are_done(heart: Heart) -> None:
    """The first item is no progress, the second says that the first is done."""
    told = [(heart.done, heart.of) for _ in pulse.counted(Bar("abc"))]
    assert told == [(0, 3), (1, 3), (2, 3)]


def test_items_without_a_number_are_counted(heart: Heart) -> None:
    """What has no length has no total."""
    assert list(pulse.counted(iter("ab"))) == ["a", "b"]
    assert (heart.done, heart.of) == (1, 0)


class Endless:
    """What tqdm makes of a generator: its length is None."""

    total = None

    def __len__(self) -> int:
        return None  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter("ab")


def test_a_bar_over_a_generator_has_no_number(heart: Heart) -> None:
    """Nor is its length an error."""
    assert list(pulse.counted(Endless())) == ["a", "b"]
    assert (heart.done, heart.of) == (1, 0)


def test_tqdm_over_a_generator_has_no_number(heart: Heart) -> None:
    """The real one."""
    tqdm = pytest.importorskip("tqdm").tqdm
    assert list(pulse.counted(tqdm((letter for letter in "ab"), disable=True))) == ["a", "b"]
    assert (heart.done, heart.of) == (1, 0)


def test_advance_opens_its_phase_and_counts_on(heart: Heart) -> None:
    """More than four gigabytes too, as hashing counts."""
    pulse.phase("step")
    pulse.advance("hash", 3_000_000_000)
    pulse.advance("hash", 3_000_000_000)
    assert (heart.phase, heart.done) == (b"hash", 6_000_000_000)
    assert not heart.muted


def test_a_phase_lasts_until_the_next_one(heart: Heart) -> None:
    """As a plain statement."""
    pulse.phase("load")
    heart.done = 5
    pulse.phase("sampling")
    assert (heart.phase, heart.done) == (b"sampling", 0)


@pytest.mark.parametrize("block", [pulse.phase, pulse.during])
def test_a_phase_may_end_with_its_block(heart: Heart, block: type[pulse.phase] | type[pulse.during]) -> None:
    """The phase before it begins again then, whatever happened, and however deep."""
    pulse.phase("step")
    with contextlib.suppress(KeyError), block("sampling"):
        with block("saving"):
            assert heart.phase == b"saving"
        assert heart.phase == b"sampling"
        raise KeyError
    assert heart.phase == b"step"


def test_a_phase_may_be_that_of_a_function(heart: Heart) -> None:
    """From each call to its end, of one that calls itself too."""
    seen: list[bytes] = []

    @pulse.during("hash")
    def depth(left: int) -> int:
        seen.append(heart.phase)
        return 0 if left == 0 else depth(left - 1)

    assert heart.phase == b"load"
    depth(2)
    assert seen == [b"hash"] * 3
    assert heart.phase == b"load"


@pytest.mark.parametrize("block", [pulse.phase, pulse.during])
def test_a_phase_in_which_the_training_begins_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, heart: Heart, block: type[pulse.phase] | type[pulse.during]
) -> None:
    """Nobody listened before it, so there is nothing to go back to."""
    monkeypatch.setattr(pulse._trainer, "heart", None)
    with block("load"):
        monkeypatch.setattr(pulse._trainer, "heart", heart)
        heart.phase = b"step"
    assert heart.phase == b"step"


def test_a_loop_that_tells_of_no_phase_is_in_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also after a phase that others have put around a part of it."""
    monkeypatch.setattr(pulse._trainer, "begun", True)
    monkeypatch.setattr(pulse._trainer, "heart", None)
    pulse.listen(tmp_path, 3)
    with pulse.during("saving"):
        pass
    beat = heartbeat.read(heartbeat.path_for(tmp_path, 3))
    assert beat is not None
    assert beat.phase == ""


@pytest.mark.parametrize("kind", ["block_swap", "batch", "first_batch", "read", "barrier"])
def test_the_longest_wait_of_each_kind_is_kept(heart: Heart, kind: str) -> None:
    """It is named as its limit is."""
    assert hasattr(WaitLimits(), kind)
    pulse.phase("step")
    for seconds in (1.0, 3.0, 2.0):
        pulse.completed(kind, seconds)
    kept = {name: getattr(heart, name) for name in pulse._LONGEST.values()}
    assert kept.pop(pulse._LONGEST[kind]) == 3.0
    assert not any(kept.values())


@pytest.mark.parametrize(("kind", "kept"), [("block_swap", 0.0), ("batch", 0.0), ("read", 3.0), ("barrier", 3.0)])
def test_waits_of_each_step_are_learned_from_in_steps_only(heart: Heart, kind: str, kept: float) -> None:
    """The first step compiles and warms up."""
    pulse.phase("first step")
    pulse.completed(kind, 3.0)
    assert getattr(heart, pulse._LONGEST[kind]) == kept


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, items: list[int]) -> None:
    """Without a supervisor every word is a no-op."""
    monkeypatch.setattr(pulse._trainer, "heart", None)
    pulse.advance("hash", 5)
    pulse.completed("read", 5.0)
    with pulse.phase("sampling"), pulse.during("saving"):
        pulse.step(1)
    assert list(pulse.counted(items)) == items


def test_troubles_are_plain_words() -> None:
    """Nothing is said about a healthy training."""
    assert of_beat(None) == of_beat(BEAT) == ()
    told = [trouble.text for trouble in of_beat(replace(BEAT, retries=3, unstepped=1, unsampled=2))]
    assert "3 times" in told[0]
    assert "once" in told[1]
    assert "sampling failed 2 times" in told[2]
