"""Laws of knowing a process again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from fluxguard.supervisor.sensing.identity import Identity


def me() -> Identity:
    """Return who runs this test."""
    found = Identity.of(os.getpid())
    assert found is not None
    return found


def test_a_process_is_known_again() -> None:
    """Through a file too."""
    assert me().alive()
    assert Identity.from_mapping(me().to_mapping()) == me()


def test_a_reused_number_is_somebody_else() -> None:
    """Another start, or another start of the machine."""
    assert not replace(me(), started=me().started - 1).alive()
    if me().boot:
        assert not replace(me(), boot="another").alive()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system keeps the time of the start")
def test_setting_the_clock_changes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the wall clock moves the boot time that psutil adds, and must not make a trainer a stranger."""
    before = me()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1.0, raising=False)
    assert me() == before
    assert before.alive()


@pytest.mark.parametrize("values", [{}, {"pid": "x", "started": 1}, {"pid": 1}, {"pid": 1, "started": None}])
def test_a_damaged_note_names_nobody(values: dict[str, object]) -> None:
    """And raises nothing."""
    assert Identity.from_mapping(values) is None
