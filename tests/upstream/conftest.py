"""The laws of hardening on a checkout the user has: `pytest -m upstream --sd-scripts PATH [--trainer-python PATH]`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluxguard.patching import checkout as checkouts


@pytest.fixture(scope="session")
def original(request: pytest.FixtureRequest) -> Path:
    """The checkout itself; never written to."""
    given = request.config.getoption("--sd-scripts")
    if given is None:
        pytest.skip("needs --sd-scripts PATH")
    return checkouts.recognise(given).root


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be hardened in place."""
    target = tmp_path / "sd-scripts"
    for name, source in checkouts.copied(original):
        if source.is_file():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)
    return target


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of the trainer's environment."""
    given: str | None = request.config.getoption("--trainer-python")
    if given is None:
        pytest.skip("needs --trainer-python PATH, the interpreter that the checkout trains with")
    return given
