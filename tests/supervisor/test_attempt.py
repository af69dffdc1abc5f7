"""Laws of counting an attempt's steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.sensing.output import Shown
from tests.supervisor.histories import BEAT

ATTEMPT = Attempt(uuid="0" * 32, number=2, start_step=20, log_from=0, at=0.0, keeper=None)


@pytest.mark.parametrize(
    ("hardened", "beat", "bar", "true"),
    [
        (True, 25, 25, 25),
        (True, 0, 0, 20),  # a beat from before the state was restored
        (True, None, 25, 25),  # no room for a heartbeat: its bar is true too
        (True, None, 0, 20),
        (False, None, 5, 25),  # upstream counts its own process
    ],
)
def test_true_steps(hardened: bool, beat: int | None, bar: int, true: int) -> None:
    """With a heartbeat and without one, hardened and not."""
    seen = None if beat is None else replace(BEAT, step=beat)
    assert ATTEMPT.true_step(seen, Shown(bar=bar), hardened=hardened) == true
