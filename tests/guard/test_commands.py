"""A program that is asked for a word has a limit."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from fluxguard import limits
from fluxguard.guard import commands
from fluxguard.limits import Limits, WaitLimits


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What subprocess.check_output was given."""
    calls: list[dict[str, Any]] = []

    def answer(*words: Any, **options: Any) -> bytes:
        calls.append(options)
        return b"answer"

    monkeypatch.setattr(subprocess, "check_output", answer)
    return calls


@pytest.mark.parametrize("limit", [7.0, None])
def test_a_program_has_the_limit_of_a_command(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(command=limit)))
    assert commands.check_output(["git"], cwd="here") == b"answer"
    assert asked == [{"cwd": "here", "timeout": limit}]


def test_a_limit_of_the_callers_own_is_kept(asked: list[dict[str, Any]]) -> None:
    commands.check_output(["git"], timeout=1)
    assert asked == [{"timeout": 1}]
