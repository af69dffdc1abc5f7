"""Laws of the house: who imports whom, how long a function may be, and what no file may hold."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fluxguard

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "fluxguard").rglob("*.py")) + sorted((ROOT / "app").glob("*.py"))
OURS = [path for path in SOURCES if "demo" not in path.parts]
LONGEST_FUNCTION, LONGEST_FILE = 60, 400

LEAVES = {"errors", "clock", "limits", "heartbeat", "rundir", "manifest"}
MAY_IMPORT = {
    "cli": {"app", "patching", "supervisor", "launch", "drill", "distributed", *LEAVES},
    "__main__": {"cli"},
    "app": {"supervisor", "launch", "patching", "drill", *LEAVES},
    "drill": {"supervisor", "launch", "patching", *LEAVES},
    "supervisor": {"launch", *LEAVES},
    "launch": {"errors"},
    "patching": LEAVES,
    "guard": LEAVES,
    "distributed": {"guard", *LEAVES},
    "__init__": {"guard", *LEAVES},
    "demo": set(),
    **dict.fromkeys(LEAVES, LEAVES),
}
FOREIGN = {
    "guard": {"torch", "numpy", "accelerate"},  # and only inside functions
    **{leaf: set() for leaf in LEAVES},
}
HEAVY = {"torch", "torchmetrics", "numpy", "accelerate", "gradio", "safetensors", "rich"}


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
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            named = node.module == "fluxguard"
            yield from (f"fluxguard.{alias.name}" for alias in node.names) if named else (node.module,)
        elif not (top and _is_inside(node)) and not isinstance(node, ast.expr):
            waiting.extend(ast.iter_child_nodes(node))


def _is_inside(node: ast.AST) -> bool:
    """Whether what a node holds is not run at import: a function, or a block for type checkers."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def where(path: Path) -> str:
    """Return a file's place in the house, for a message."""
    return path.relative_to(ROOT).as_posix()


def roots(path: Path, *, top: bool = False) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {name.split(".")[0] for name in imports(path, top=top)}


def test_rooms_import_only_who_they_may() -> None:
    """The import graph of the house, frozen."""
    for path in SOURCES:
        met = {name.split(".")[1] for name in imports(path) if name.startswith("fluxguard.")}
        assert met <= MAY_IMPORT[room(path)] | {room(path)}, where(path)


def test_what_is_vendored_needs_only_the_standard_library() -> None:
    """It runs in the trainer's environment, where nothing of ours is installed."""
    known = sys.stdlib_module_names | {"fluxguard"}
    for path in OURS:
        if room(path) in FOREIGN:
            assert roots(path, top=True) <= known, where(path)
            assert roots(path) <= known | FOREIGN[room(path)], where(path)


def test_the_supervisor_imports_nothing_heavy() -> None:
    """At module level: it stays small while it watches."""
    for path in OURS:
        if room(path) == "supervisor":
            assert not roots(path, top=True) & (HEAVY - {"safetensors"}), where(path)
            assert "torch" not in roots(path), where(path)


def test_the_parts_for_ranks_are_cheap_to_import() -> None:
    """A loop imports them before it has chosen its device; what is heavy waits inside functions."""
    for path in OURS:
        if room(path) == "distributed":
            assert not roots(path, top=True) & HEAVY, where(path)


def test_no_file_of_the_parts_for_ranks_hides_a_public_name() -> None:
    """Importing `distributed/setup.py` would make `distributed.setup` a module."""
    from fluxguard import distributed

    assert not {path.stem for path in (ROOT / "fluxguard" / "distributed").iterdir()} & set(distributed.__all__)


def test_nothing_posix_only_is_imported_at_module_level() -> None:
    """Windows can import every file."""
    for path in OURS:
        assert not {"fcntl", "resource", "pwd", "grp", "termios"} & set(imports(path, top=True)), where(path)


def test_files_and_functions_stay_short() -> None:
    """Ceilings, not aims."""
    for path in OURS:
        assert len(path.read_text("utf-8").splitlines()) <= LONGEST_FILE, where(path)
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
                assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{where(path)}: {node.name}"


def test_no_wait_holds_a_bare_number() -> None:
    """Promises live in limits.py, poll intervals have names."""
    for path in OURS:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            values = [word.value for word in node.keywords if word.arg in ("timeout", "seconds")]
            values += node.args[:1] if name in ("sleep", "wait", "result", "acquire") else []
            bare = [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, (int, float)) and v.value]
            assert not bare, f"{where(path)}:{node.lineno}"


def test_sources_are_ascii_and_know_no_mocks() -> None:
    """Plain text, and no production code that knows its tests."""
    for path in OURS:
        assert path.read_text("utf-8").isascii(), where(path)
        assert not {"unittest", "pytest"} & roots(path), where(path)


def test_public_names_are_gathered_once_and_sorted() -> None:
    """What __all__ names exists."""
    from fluxguard import distributed

    for gathered in (fluxguard, distributed):
        assert sorted(gathered.__all__) == list(gathered.__all__)
        assert all(hasattr(gathered, name) for name in gathered.__all__), gathered.__name__


def test_every_verb_stands_in_a_panel_of_the_help() -> None:
    """And no panel names one that is not there."""
    from fluxguard.cli.verbs import PANELS, app

    told = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert sorted(verb for verbs in PANELS.values() for verb in verbs) == sorted(told)
