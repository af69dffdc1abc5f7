"""The stage: real supervisors and a tiny trainer, and nothing of them left afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Return what sets a stage for a scene; nothing of it lives when the test is over."""
    (tmp_path / "out").mkdir()
    made: list[Stage] = []

    def setting(scene: str = "", *flags: str, once: bool = True) -> Stage:
        made.append(Stage(tmp_path, scene, once, flags))
        return made[-1]

    yield setting
    for one in made:
        one.close()
        assert one.living() == []
