"""How the workers of pytest-xdist share the tests: file by file, and the files that take long come first.

What a file's tests share (a module's fixture, a table of programs that run at once) is then made once. The tests of
some long files share nothing, or only what all workers share, and are given out one by one. Nothing of this has an
effect on a run in one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    import pytest

LONG = (
    "tests/campaign/test_random_kills.py",
    "tests/drill/test_drill.py",
    "tests/campaign/test_campaign.py",
    "tests/campaign/test_killed_supervisors.py",
    "tests/supervisor/test_machines.py",
    "tests/demo/test_two_ranks.py",
    "tests/supervisor/test_supervise.py",
    "tests/guard/test_faults.py",
    "tests/app/test_page.py",
    "tests/scenarios/test_groups.py",
    "tests/guard/test_loader.py",
    "tests/scenarios/test_healthy.py",
    "tests/test_cli.py",
    "tests/guard/test_exact_resume.py",
    "tests/patching/test_crashes.py",
    "tests/patching/test_miniature.py",
    "tests/guard/test_stuck_reads.py",
    "tests/demo/test_miniature.py",
    "tests/supervisor/test_following.py",
    "tests/distributed/test_hangs.py",
    "tests/test_examples.py",
    "tests/campaign/test_killed_ranks.py",
    "tests/distributed/test_setup.py",
    "tests/distributed/test_metrics.py",
    "tests/distributed/test_vecenv.py",
    "tests/guard/test_every_way.py",
    "tests/guard/test_caches.py",
    "tests/guard/test_barriers.py",
    "tests/supervisor/test_foreign.py",
    "tests/supervisor/incidents/test_secrets.py",
    "tests/supervisor/test_posting.py",
    "tests/supervisor/test_bad_input.py",
    "tests/supervisor/test_watching.py",
    "tests/test_notify.py",
    "tests/test_watching.py",
    "tests/test_fluxgym.py",
    "tests/campaign/test_patching_kills.py",
)  # fmt: skip
"""The files that take more than ten seconds, the longest first: so that no worker is left alone with one at the end."""
APART = frozenset({
    "tests/campaign/test_campaign.py",
    "tests/campaign/test_killed_supervisors.py",
    "tests/scenarios/test_groups.py",
    "tests/scenarios/test_healthy.py",
    "tests/supervisor/test_machines.py",
})  # fmt: skip
"""Of these, the ones whose tests need not stay together."""
PATIENCE = 120.0
"""Seconds that a test of real processes may take at the least: it shares the machine with those of other workers."""
_MADE = "made"


def is_one(config: pytest.Config) -> bool:
    """Return whether this process is a worker."""
    return hasattr(config, "workerinput")


def unit(nodeid: str) -> str:
    """Return the name of what is given to a worker as a whole, and holds this test."""
    path = nodeid.partition("::")[0]
    return nodeid if path in APART else path


def ordered(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the long files first."""
    places = {path: place for place, path in enumerate(LONG)}
    return sorted(items, key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what gives the units to the workers, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    made = LoadScopeScheduling(config, log)
    made._split_scope = unit
    config.option.loadscopereorder = False  # which would be by the number of tests
    return made


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that all workers of a session share, made by the first that asks for it."""
    own = factory.getbasetemp()
    folder: Path = (own.parent if own.name.startswith("popen-gw") else own) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / _MADE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / _MADE).touch()
    return folder
