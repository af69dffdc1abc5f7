"""How the properties are tested: with the same examples every time, few of them, without a clock, and no file kept."""

from __future__ import annotations

import tempfile

from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

_home = tempfile.TemporaryDirectory()
set_hypothesis_home_dir(_home.name)  # before the first strategy is made, which already keeps files

settings.register_profile("laws", derandomize=True, database=None, deadline=None, max_examples=40)
settings.load_profile("laws")


def pytest_unconfigure() -> None:
    """Keep no file."""
    _home.cleanup()
