"""Laws of the list of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fluxguard.app.runs import Registry, Run


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return an empty list, in a folder that does not exist yet."""
    return Registry(tmp_path / "outputs" / ".fluxguard-runs.json")


def run_in(tmp_path: Path, name: str, **changes: Any) -> Run:
    """Return a run whose folder exists."""
    (tmp_path / name / ".fluxguard").mkdir(parents=True, exist_ok=True)
    values = {"train_sh": f"/{name}.sh", "started_at": 1.5, "pid": 7, "pid_started": 2.5, "log_from": 0, **changes}
    return Run(output_dir=str(tmp_path / name), **values)


def test_a_missing_file_is_an_empty_list(registry: Registry) -> None:
    """The first start."""
    assert registry.read() == []
    assert registry.find("/x") is None


def test_what_is_added_is_read_by_the_next_page(registry: Registry, tmp_path: Path) -> None:
    """Newest last."""
    first, second = run_in(tmp_path, "one"), run_in(tmp_path, "two")
    registry.add(first)
    registry.add(second)
    assert Registry(registry.path).read() == [first, second]
    assert registry.find(first.output_dir) == first


def test_a_folder_has_one_run(registry: Registry, tmp_path: Path) -> None:
    """Its newest start counts, and is the newest of all."""
    first, second, again = run_in(tmp_path, "one"), run_in(tmp_path, "two"), run_in(tmp_path, "one", pid=8)
    for run in (first, second, again):
        registry.add(run)
    assert registry.read() == [second, again]


def test_a_vanished_folder_is_passed_over(registry: Registry, tmp_path: Path) -> None:
    """Somebody deleted it."""
    registry.add(run_in(tmp_path, "one"))
    registry.add(run_in(tmp_path, "two"))
    (tmp_path / "one" / ".fluxguard").rmdir()
    assert [Path(run.output_dir).name for run in registry.read()] == ["two"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 99, "runs": []}', '{"version": 1, "runs": 3}', "\x00\x01"]
)
def test_a_damaged_file_is_an_empty_list(registry: Registry, tmp_path: Path, text: str) -> None:
    """And the next start makes a good one of it."""
    registry.path.parent.mkdir()
    registry.path.write_text(text)
    assert registry.read() == []
    registry.add(run_in(tmp_path, "one"))
    assert len(registry.read()) == 1


@pytest.mark.parametrize("damage", [{"pid": "7"}, {"pid": True}, {"output_dir": None}, {"log_from": 1.5}])
def test_a_damaged_entry_is_passed_over(registry: Registry, tmp_path: Path, damage: dict[str, Any]) -> None:
    """The others stay; a key that a later version added does no harm."""
    registry.add(run_in(tmp_path, "one"))
    values = json.loads(registry.path.read_text())
    good = {**values["runs"][0], "added": "later"}
    registry.path.write_text(json.dumps({**values, "runs": [{**good, **damage}, None, good]}))
    assert [run.pid for run in registry.read()] == [7]
