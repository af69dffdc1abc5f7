"""The other half of the law: what is slow and healthy is never ended, however tight the limits and busy the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.guard.together import Program, Together
from tests.guard.ways import LIMIT, LINUX
from tests.warm import Starter

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not LINUX, reason="processes are found again by their environment in /proc"),
]

HARD = 40.0
LIMITS = {
    "wait": {"block_swap": LIMIT, "batch": LIMIT, "first_batch": 20.0, "read": LIMIT, "barrier": LIMIT, "upload": 20.0}
}

WAYS = (
    "suspended_swap",
    "suspended_fatal_scope",
    "suspended_scope page",
    "slow_disk",
    "slow_disk_on_a_thread",
    "latents",
    "latents page",
    "decoding",
    "decoding page",
    "first_step",
    "sampling",
    "slow_save",
    "slow_upload",
    "big_archive",
    "short_swaps",
    "swaps_near_the_limit",
    "scopes",
    "scopes_on_threads",
    "clock_that_jumps",
)
WITH_TORCH = (
    "loader_suspended",
    "loader_on_a_slow_disk",
    "loader_on_a_slow_disk page",
    "loader_with_a_slow_first_batch",
    "loader_while_main_is_busy",
    "loader_between_epochs",
    "rank_that_works",
)
ALL = (*WITH_TORCH, *WAYS)
FAILS = {
    "suspended_fatal_scope": "half of the time: faulthandler's timer counts the time in which the process is stopped",
}
"""The reasons for which the law does not hold yet."""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, warm: Callable[[], Starter]) -> Iterator[Together]:
    """Start all of them at once: the load that they are to each other is a part of the test."""
    programs = [Program(way, f"healthy.py {way}", LIMITS, HARD, torch=way in WITH_TORCH) for way in ALL]
    table = Together(programs, tmp_path_factory.mktemp("healthy"), warm, len(programs))
    yield table
    table.close()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(
            way,
            marks=pytest.mark.xfail(reason=FAILS[way], strict=way != "suspended_fatal_scope") if way in FAILS else (),
        )
        for way in ALL
    ],
)
def test_what_is_slow_and_healthy_is_not_ended(together: Together, way: str) -> None:
    """Slow disks, slow processors, long phases, stopped processes and clocks that jump are no hangs."""
    ran = together.ran(way)
    assert ran.outcome.code == 0, ran.said
    assert "lived" in ran.outcome.output
    assert not ran.outcome.left
    assert not ran.run.last_words(0).exists()
    assert not ran.run.healed(0).exists()
