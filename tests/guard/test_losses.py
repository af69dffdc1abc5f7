"""Laws of losses that are no numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fluxguard import limits
from fluxguard.guard import losses
from fluxguard.guard.ending import Verdict
from fluxguard.heartbeat import Heart
from fluxguard.limits import Limits


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, heart: Heart) -> list[Verdict]:
    """Note the ends instead of ending, with a limit of 3."""
    ended: list[Verdict] = []
    monkeypatch.setattr(losses, "_losses", losses._Losses())
    monkeypatch.setattr(limits._process, "limits", Limits(max_bad_losses=3))
    monkeypatch.setattr(losses, "end_process", ended.append)
    return ended


def tell(*values: float) -> None:
    for step, value in enumerate(values, 1):
        losses.check_loss(value, step)


def test_a_loss_that_heals_stops_nothing(verdicts: list[Verdict]) -> None:
    """Only losses in a row count: a scaler of fp16 skips a few."""
    tell(0.5, math.nan, math.inf, 0.5, math.nan, math.nan, 0.5)
    assert not verdicts


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_too_many_in_a_row_stop_it_for_good(verdicts: list[Verdict], bad: float) -> None:
    """Another attempt would end the same."""
    tell(0.5, bad, bad)
    assert not verdicts
    losses.check_loss(bad, 4)
    (verdict,) = verdicts
    assert not verdict.again
    assert "3 times in a row, from step 2 on; no state was saved before" in verdict.what


def test_a_state_is_good_only_after_a_good_loss(verdicts: list[Verdict], tmp_path: Path) -> None:
    """The loss told next is that of the step before the save: its weights may be lost already."""
    good, lost = tmp_path / "a-state", tmp_path / "b-state"
    for state in (good, lost):
        state.mkdir()
    losses.saved(good)
    tell(0.5, 0.5)
    losses.saved(lost)
    tell(0.5, math.nan, math.nan, math.nan)
    assert verdicts[0].file == str(good)
    assert not lost.exists()
    assert (tmp_path / "b-state.not-finite").is_dir()
    assert good.is_dir()


def test_the_state_it_began_with_is_the_last_good_one(verdicts: list[Verdict], tmp_path: Path) -> None:
    """It is named, and never set aside."""
    begun = tmp_path / "a-state"
    begun.mkdir()
    losses.loaded(begun)
    tell(math.nan, math.nan, math.nan)
    assert verdicts[0].file == str(begun)
    assert begun.is_dir()


def test_a_state_that_is_gone_does_not_disturb_the_end(verdicts: list[Verdict], tmp_path: Path) -> None:
    """Retention may have been there before."""
    losses.saved(tmp_path / "gone-state")
    tell(math.nan, math.nan, math.nan)
    assert len(verdicts) == 1


def test_an_older_state_is_removed_only_when_the_newer_is_good(verdicts: list[Verdict]) -> None:
    """Else the retention would delete the last good one."""
    removed: list[str] = []
    losses.once_good(lambda: removed.append("old"))
    losses.check_loss(math.nan, 1)
    assert not removed
    losses.check_loss(0.5, 2)
    assert not removed
    losses.check_loss(0.5, 3)
    assert removed == ["old"]


def test_the_end_of_a_good_training_keeps_nothing_waiting(verdicts: list[Verdict]) -> None:
    """No loss comes after the last one."""
    removed: list[str] = []
    losses.once_good(lambda: removed.append("old"))
    losses.training_ended()
    assert removed == ["old"]
    losses.once_good(lambda: removed.append("never"))
    losses.check_loss(math.nan, 9)
    losses.training_ended()
    assert removed == ["old"]
