"""Laws of what the trainer tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fluxguard.guard import pulse
from fluxguard.heartbeat import Heart
from fluxguard.supervisor.troubles import troubles
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


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, items: list[int]) -> None:
    """Without a supervisor every word is a no-op."""
    monkeypatch.setattr(pulse._trainer, "heart", None)
    pulse.advance("hash", 5)
    assert list(pulse.counted(items)) == items


def test_troubles_are_plain_words() -> None:
    """Nothing is said about a healthy training."""
    assert troubles(None) == troubles(BEAT) == ()
    told = troubles(replace(BEAT, retries=3, unstepped=1, unsampled=2))
    assert "3 times" in told[0]
    assert "once" in told[1]
    assert "sampling failed 2 times" in told[2]
