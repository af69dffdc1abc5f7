"""Laws of the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.supervisor import ledger
from fluxguard.supervisor.ledger import Event, Ledger


def kinds(path: Path) -> list[str]:
    """Return the kinds of the events in a file."""
    return [event.kind for event in ledger.read(path)]


def test_events_come_back_in_order(tmp_path: Path) -> None:
    """With their values, in a file that only grows."""
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path, FakeClock())
    book.add("stopped", reason="a", applied_steps=1)
    Ledger(path, FakeClock()).add("stopped", reason="\udcff", applied_steps=2)
    assert [event.values["applied_steps"] for event in ledger.read(path)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"event": "stopped"}', '{"version": 1, "event": "ended", "at": 1}'],
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, line: str) -> None:
    """Torn, foreign, of another version, or without what its kind needs; what follows is whole."""
    path = tmp_path / "ledger.jsonl"
    path.write_text(line)
    Ledger(path, FakeClock()).add("adopted", attempt="x")
    assert kinds(path) == ["adopted"]


def test_a_line_of_another_version_is_passed_over(tmp_path: Path) -> None:
    """What it means is not known."""
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps({"version": 2, "event": "adopted", "at": 1, "attempt": "x"}) + "\n")
    assert kinds(path) == []


def test_a_full_disk_costs_the_line_not_the_supervision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is known to this process, and the reserve was given back to the disk."""
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path, FakeClock())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    book.add("adopted", attempt="x")
    monkeypatch.undo()
    assert [event.kind for event in book.events] == ["adopted"]
    assert not path.with_suffix(".reserve").exists()
    book.add("adopted", attempt="y")
    assert kinds(path) == ["adopted"]


def test_a_dead_terminal_is_told_nothing_more(tmp_path: Path) -> None:
    """And the others still are."""
    heard: list[str] = []

    def broken(event: Event) -> None:
        heard.append("broken")
        raise BrokenPipeError

    book = Ledger(tmp_path / "ledger.jsonl", FakeClock(), (broken, lambda event: heard.append(event.kind)))
    book.add("adopted", attempt="x")
    book.add("adopted", attempt="y")
    assert heard == ["broken", "adopted", "adopted"]
