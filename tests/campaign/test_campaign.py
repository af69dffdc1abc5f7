"""A short version of the fault campaign; `make campaign` holds the whole one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaign.__main__ import JOBS, RUNS, hold, line, plan
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
@pytest.mark.timeout(len(QUICK) * LONGEST * PATIENCE)
def test_faults_at_random_moments_end_right(tmp_path: Path) -> None:
    """Finished and verified, or stopped and explained by the right cause; nothing is left and nothing is silent."""
    pytest.importorskip("accelerate")
    kinds = [kind for kind in KINDS if kind.name in QUICK]
    rulings = hold(Field(tmp_path), plan(kinds, len(kinds), SEED), JOBS, lambda _: None)
    wrong = [line(ruling) for ruling in rulings if ruling.broken]
    assert not wrong, "\n".join(wrong)
