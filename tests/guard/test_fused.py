"""Laws of fused optimizers."""

from __future__ import annotations

import logging

import pytest

from fluxguard.guard import fused
from fluxguard.heartbeat import Heart


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_told", fused._Told())


@pytest.mark.parametrize(
    ("hooked", "sizes"),
    [
        ({}, [3, 2]),  # before the first step
        ({0: 3, 1: 2}, [3, 2]),
        ({0: 6, 1: 4}, [3, 2]),  # two backward passes
        ({0: 3}, [3, 0]),  # an optimizer without parameters
    ],
)
def test_a_step_of_all_optimizers_is_silent(
    heart: Heart, caplog: pytest.LogCaptureFixture, hooked: dict[int, int], sizes: list[int]
) -> None:
    """Nothing is said about a healthy step."""
    fused.fused_steps(hooked, sizes)
    assert (heart.unstepped, caplog.messages) == (0, [])


def test_an_optimizer_that_did_not_step_is_named(heart: Heart, caplog: pytest.LogCaptureFixture) -> None:
    """With the number of them, and counted in the heartbeat."""
    fused.fused_steps({0: 3, 1: 1, 2: 2}, [3, 2, 2])
    assert heart.unstepped == 1
    assert "1 of 3 optimizers did not step" in caplog.text
    assert "optimizer 1;" in caplog.text


def test_the_log_stays_readable(heart: Heart, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand such steps are ten lines."""
    caplog.set_level(logging.WARNING)
    for _ in range(1000):
        fused.fused_steps({0: 0}, [1])
    assert heart.unstepped == 1000
    assert len(caplog.messages) == 10
