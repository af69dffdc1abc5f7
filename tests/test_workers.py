"""Laws of sharing the tests between workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import workers
from tests.conftest import ROOT

LONG = workers.LONG[1]


def test_the_files_that_take_long_are_there() -> None:
    """One that was renamed would come last, and leave a worker alone with it."""
    assert [path for path in workers.LONG if not (ROOT / path).is_file()] == []
    assert len(set(workers.LONG)) == len(workers.LONG)
    assert set(workers.LONG) >= workers.APART


def test_they_come_first_and_nothing_else_is_moved() -> None:
    """Tests of one file stay in their order."""
    names = ["tests/a.py::x", f"{LONG}::x", "tests/b.py::y[a::b]", f"{LONG}::y", f"{workers.LONG[0]}::z"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    assert [item.nodeid for item in workers.ordered(items)] == [names[4], names[1], names[3], names[0], names[2]]


def test_a_file_is_one_unit_unless_its_tests_share_nothing() -> None:
    """Whatever stands in the brackets."""
    assert workers.unit("tests/b.py::y[a::b]") == "tests/b.py"
    apart = f"{min(workers.APART)}::y[a::b]"
    assert workers.unit(apart) == apart


@pytest.mark.parametrize("names", [("popen-gw0", "popen-gw1"), ("alone", "alone")])
def test_what_all_share_is_made_once(tmp_path: Path, names: tuple[str, str]) -> None:
    """By whichever worker asks first; what one failed to make is made by the next."""
    made: list[Path] = []
    factories: list[Any] = [SimpleNamespace(getbasetemp=lambda name=name: tmp_path / name) for name in names]
    (tmp_path / names[0]).mkdir()

    def fail(folder: Path) -> None:
        raise OSError(folder)

    with pytest.raises(OSError, match="shared"):
        workers.once(factories[0], "shared", fail)
    places = {workers.once(factory, "shared", made.append) for factory in factories}
    assert places == set(made)
    assert len(made) == 1
