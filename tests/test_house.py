"""Laws of the house: who imports whom, how long a function may be, and what no file may hold."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fluxguard

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "fluxguard").rglob("*.py")) + sorted((ROOT / "app").glob("*.py"))
OURS = [path for path in SOURCES if "demo" not in path.parts]
LONGEST_FUNCTION, LONGEST_FILE = 60, 400

LEAVES = {"errors", "clock", "limits", "heartbeat", "rundir", "manifest"}
MAY_IMPORT = {
    "cli": {"app", "patching", "supervisor", "launch", "drill", *LEAVES},
    "__main__": {"cli"},
    "app": {"supervisor", "launch", "patching", "drill", *LEAVES},
    "drill": {"supervisor", "launch", "patching", *LEAVES},
    "supervisor": {"launch", *LEAVES},
    "launch": {"errors"},
    "patching": LEAVES,
    "guard": LEAVES,
    "__init__": {"guard", *LEAVES},
    "demo": set(),
    **dict.fromkeys(LEAVES, LEAVES),
}
FOREIGN = {
    "guard": {"torch", "numpy", "accelerate"},  # and only inside functions
    **{leaf: set() for leaf in LEAVES},
}
HEAVY = {"torch", "numpy", "accelerate", "gradio", "safetensors", "rich"}


def room(path: Path) -> str:
    """Return the room that a source file belongs to."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "app" else parts[1]


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, read once."""
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(path: Path, *, top: bool = False) -> tuple[str, ...]:
    """Return the modules that a file imports, by full name; `top` leaves out those inside functions."""
    return tuple(_imports(path, top=top))


def _imports(path: Path, *, top: bool) -> Iterator[str]:
    tree = parsed(path)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    inside |= {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if top and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "fluxguard":
                yield from (f"fluxguard.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_who_they_may(path: Path) -> None:
    """The import graph of the house, frozen."""
    mine = room(path)
    met = {name.split(".")[1] for name in imports(path) if name.startswith("fluxguard.")}
    assert met <= MAY_IMPORT[mine] | {mine}, f"{mine} may not import {met - MAY_IMPORT[mine] - {mine}}"


@pytest.mark.parametrize(
    "path", [path for path in OURS if room(path) in FOREIGN], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_is_vendored_needs_only_the_standard_library(path: Path) -> None:
    """It runs in the trainer's environment, where nothing of ours is installed."""
    known = sys.stdlib_module_names | {"fluxguard"}
    assert {name.split(".")[0] for name in imports(path, top=True)} <= known
    assert {name.split(".")[0] for name in imports(path)} <= known | FOREIGN[room(path)]


@pytest.mark.parametrize("path", [path for path in OURS if room(path) == "supervisor"], ids=lambda path: path.name)
def test_the_supervisor_imports_nothing_heavy(path: Path) -> None:
    """At module level: it stays small while it watches."""
    assert not {name.split(".")[0] for name in imports(path, top=True)} & (HEAVY - {"safetensors"})
    assert "torch" not in {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_posix_only_is_imported_at_module_level(path: Path) -> None:
    """Windows can import every file."""
    assert not {"fcntl", "resource", "pwd", "grp", "termios"} & set(imports(path, top=True))


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    """Ceilings, not aims."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


TIMED = {"sleep", "wait", "join", "result", "get", "acquire"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_wait_holds_a_bare_number(path: Path) -> None:
    """Promises live in limits.py, poll intervals have names."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        values = [word.value for word in node.keywords if word.arg in ("timeout", "seconds")]
        if name in TIMED - {"get", "join"}:
            values += node.args[:1]
        bare = [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, (int, float)) and v.value]
        assert not bare, f"line {node.lineno}"


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_ascii_and_know_no_mocks(path: Path) -> None:
    """Plain text, and no production code that knows its tests."""
    assert path.read_text("utf-8").isascii()
    assert not {"unittest", "pytest"} & {name.split(".")[0] for name in imports(path)}


def test_public_names_are_gathered_once_and_sorted() -> None:
    """What __all__ names exists."""
    assert sorted(fluxguard.__all__) == list(fluxguard.__all__)
    assert all(hasattr(fluxguard, name) for name in fluxguard.__all__)
