"""Laws of the limit of a gathering, over collectives that are only played."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("torch")

from fluxguard.distributed.measures.gathering import Gathering


class Work:
    """A collective of gloo, which remembers how long it was waited for; no time at all means for ever there."""

    waited: timedelta

    def wait(self, limit: timedelta) -> None:
        """Return at once."""
        self.waited = limit


def test_a_limit_that_has_passed_is_not_no_limit() -> None:
    """What gloo is told is never 0, whatever is left."""
    work = Work()
    for limit in (0.0, 1e-9):
        Gathering(limit)._wait(work, on_gpu=False)
        assert work.waited >= timedelta(milliseconds=1)
