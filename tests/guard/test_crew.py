"""Laws of waiting for a batch, on a clock that stands still."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard import limits
from fluxguard.clock import FakeClock
from fluxguard.guard import crew as crews
from fluxguard.guard.watcher import Wait
from fluxguard.limits import Limits, WaitLimits


class Watched:
    """A watcher that only takes note; its waits fall due when a test says so."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []

    def open(self, wait: Wait) -> None:
        self.waits.append(wait)

    def close(self, wait: Wait) -> None:
        self.waits.remove(wait)


@pytest.mark.parametrize(("limit", "every"), [(60.0, 1.0), (3.0, 0.3)])
def test_the_limit_counts_from_the_last_byte_and_is_never_a_second_late(
    monkeypatch: pytest.MonkeyPatch, limit: float, every: float
) -> None:
    """A worker that reads for 20 s and then hangs is gone a limit and one look later, at the most."""
    clock, watched = FakeClock(), Watched()
    read_until = clock.monotonic() + 20.0

    class Reads:
        def __init__(self, pid: int) -> None:
            self._last = clock.monotonic()

        def moved(self) -> bool:
            last, self._last = self._last, clock.monotonic()
            return last < read_until

    monkeypatch.setattr(crews, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(crews, "watcher", lambda: watched)
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(first_batch=limit)))
    monkeypatch.setattr(crews, "ProcessMoved", Reads)
    crew = crews.Crew(io.BytesIO())
    worker: Any = SimpleNamespace(pid=7)
    crew.given(crew.join(worker), (0, [1, 2]))
    crew.opens()
    look, wait = watched.waits
    while clock.monotonic() < wait.at:
        clock.jump(every)
        assert look.on_due(look) == pytest.approx(every)
    assert limit <= clock.monotonic() - read_until <= limit + 2 * every
