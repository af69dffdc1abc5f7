"""A short version of the fault campaign; `make campaign` holds the whole one."""

from __future__ import annotations

import os

import pytest

from tests.campaign.__main__ import RUNS, line, plan
from tests.campaign.field import LONGEST, PATIENCE, Field
from tests.campaign.kinds import KINDS, QUICK

SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
FEWEST_KINDS, FEWEST_RUNS = 20, 60


def test_the_campaign_is_as_wide_as_promised() -> None:
    """Kinds have names of their own, each is run, some of them on a trainer that is not hardened."""
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)) >= FEWEST_KINDS
    assert set(QUICK) <= set(names)
    assert any(not kind.hardened for kind in KINDS)
    planned = plan(KINDS, RUNS, SEED)
    assert len(planned) == len({(kind.name, seed) for kind, seed in planned}) >= FEWEST_RUNS


def test_a_seed_repeats_what_happened() -> None:
    """More runs than kinds are the same kinds with the next seeds."""
    planned = plan(KINDS[:2], 5, 7)
    assert [(kind.name, seed) for kind, seed in planned] == [
        (KINDS[0].name, 7), (KINDS[1].name, 7), (KINDS[0].name, 8), (KINDS[1].name, 8), (KINDS[0].name, 9),
    ]  # fmt: skip


@pytest.mark.integration
@pytest.mark.timeout(3 * LONGEST * PATIENCE)
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_at_a_random_moment_ends_right(field: Field, name: str) -> None:
    """Finished and verified, or stopped and explained by the right cause; nothing is left and nothing is silent."""
    kind = next(kind for kind in KINDS if kind.name == name)
    ruling = field.run(kind, SEED)
    assert not ruling.broken, line(ruling)
