"""What tests of the guard share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.guard import pulse
from fluxguard.heartbeat import Heart


@pytest.fixture
def heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Heart:
    """Let this process be a trainer with a heart, until the end of the test."""
    heart = Heart(tmp_path / "beat.0")
    monkeypatch.setattr(pulse._trainer, "begun", True)
    monkeypatch.setattr(pulse._trainer, "heart", heart)
    return heart
