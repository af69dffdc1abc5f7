"""Hardening killed at random times by a real SIGKILL. `make kills` kills 100 times; the tests do it five times."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fluxguard.patching import check, journal, revert
from tests.patching.conftest import snapshot

KILLS = 5 * int(os.environ.get("CAMPAIGN_KILLS", "1"))
SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
LONGEST = 30.0
MINIATURE = Path(journal.__file__).resolve().parents[1] / "demo"


def command(*words: str | Path) -> list[str]:
    """Return the command line for a checkout."""
    return [sys.executable, "-m", "fluxguard", "apply-patches", *map(str, words)]


@pytest.mark.integration
@pytest.mark.timeout(60 + LONGEST * KILLS)
def test_a_kill_at_any_time_leaves_one_of_two_trees(tmp_path: Path) -> None:
    """Whatever was going on, the next call repairs it, and nothing of the original is ever lost."""
    checkout = tmp_path / "sd-scripts"
    shutil.copytree(MINIATURE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    plain = snapshot(checkout)
    began = time.monotonic()
    subprocess.run(command(checkout), check=True, stdout=subprocess.DEVNULL)
    longest = time.monotonic() - began
    hardened = snapshot(checkout)
    chance = random.Random(SEED)
    for kill in range(KILLS):
        options = ["--revert"] if kill % 2 == 0 else []
        process = subprocess.Popen(command(checkout, *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.3, 1.0) * longest)
        process.kill()
        process.wait(LONGEST)
        check(checkout)
        assert snapshot(checkout) in (plain, hardened)
    revert(checkout)
    assert snapshot(checkout) == plain
