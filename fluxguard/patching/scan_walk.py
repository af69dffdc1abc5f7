"""Walking one file: each call that may matter, with what is around it."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fluxguard.patching import scan_calls as calls
from fluxguard.patching import scan_ranks as ranks
from fluxguard.patching.scan_names import Names, last

EVERYTHING, READS, FOREIGN = "everything", "reads", "foreign"
"""What a guard around a statement bounds."""

_LIMITED = re.compile(r"timeout|time_limit|deadline|fail_after|fail_at|exit_after|move_on_after", re.IGNORECASE)
_RENAMES = re.compile(r"\b(?:os\.replace|os\.rename|shutil\.move)\(|\.replace\(\s*\w*(?:path|file|target)\w*\s*\)")
_ASKED = ("done", "empty", "qsize")
"""Who asks for these before it takes, does not wait."""
_CALLED_BACK = re.compile(r"add_done_callback\(\s*(?:self\.)?(\w+)")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_LONGEST_CODE = 120

Loop = ast.For | ast.AsyncFor | ast.While
Leaving = ast.Break | ast.Continue | ast.Return


@dataclass(frozen=True)
class Place:
    """What is around a statement."""

    function: str = ""
    """With its class; empty at module level."""
    guards: frozenset[str] = frozenset()
    condition: str = ""
    """The condition on the rank under which it stands."""
    main: bool = True
    """Whether the condition holds on the main rank."""
    done: frozenset[str] = frozenset()
    """Futures that are known to be done, and queues that are known to hold something."""
    is_async: bool = False
    """Whether nothing here blocks: an asyncio function, or one that is called when a future is done."""
    renames: bool = False
    """Whether the function renames files, as a whole write does."""
    loop: Loop | None = None
    """The innermost loop, when the condition was met inside of it."""


@dataclass(frozen=True)
class Met:
    """One call, or one way out of a loop, as the walk comes to it."""

    node: ast.Call | Leaving
    place: Place
    entered: bool = False
    """Whether a `with` enters what the call makes."""


class Walk:
    """A walk over one file that looks closely only at the lines of interest."""

    def __init__(self, text: str, tree: ast.Module, names: Names, conditions: ranks.Conditions) -> None:
        self._tree = tree
        self._lines = text.split("\n")
        self._names = names
        self._conditions = conditions
        self._called_back = frozenset(_CALLED_BACK.findall(text))
        self._near_lines: Sequence[int] = ()
        self._loops: list[Loop] = []
        self._met: list[Met] = []

    def over(self, lines: Sequence[int]) -> Iterator[Met]:
        """Yield what is met in these lines, sorted and counted from 1."""
        self._near_lines, self._met = lines, []
        self._block(self._tree.body, Place())
        yield from self._met

    def _near(self, node: ast.stmt | ast.expr | ast.excepthandler | ast.match_case) -> bool:
        """Whether the lines of a node hold one of interest."""
        if isinstance(node, ast.match_case):
            return True
        at = bisect.bisect_left(self._near_lines, node.lineno)
        return at < len(self._near_lines) and self._near_lines[at] <= (node.end_lineno or node.lineno)

    def _block(self, body: list[ast.stmt], place: Place) -> str:
        """Read a block; return the condition under which the code behind it still runs, if some ranks have left."""
        left = ""
        for statement in body:
            gone = self._statement(statement, place)
            if gone:
                left = gone
            elif isinstance(statement, ast.If) and self._conditions.depends(statement.test):
                out = ranks.way_out(statement.body)
                gone = f"`{short(statement.test)}` left in line {statement.lineno}" if out else ""
                left = gone if out == "function" else left
            if gone:
                holds = self._conditions.on_main(statement.test) if isinstance(statement, ast.If) else not place.main
                place = replace(place, condition=gone, main=not holds)
        return left

    def _statement(self, node: ast.stmt, place: Place) -> str:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, place)
        elif isinstance(node, ast.ClassDef):
            if self._near(node):
                self._block(node.body, replace(place, function=_joined(place.function, node.name)))
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) and not self._near(node):
            return self._inner(node, place)
        elif not self._near(node):
            return ""
        elif isinstance(node, ast.If):
            self._conditional(node, place)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, place)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, place)
        elif isinstance(node, (ast.Try, ast.Match)) or type(node).__name__ == "TryStar":
            return self._inner(node, place)
        else:
            if isinstance(node, (ast.Break, ast.Continue, ast.Return)) and place.loop is not None:
                self._met.append(Met(node, place))
            self._calls(node, place)
        return ""

    def _inner(self, node: ast.stmt, place: Place) -> str:
        left = ""
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(node, name, ()) if name in ("handlers", "cases") else (node,):
                body = getattr(part, "body" if part is not node else name, [])
                if body and isinstance(body, list):
                    left = self._block(body, place) or left
        return left

    def _loop(self, node: Loop, place: Place) -> str:
        inside = replace(place, loop=None)
        self._loops.append(node)
        try:
            if isinstance(node, ast.While):
                self._conditional(node, inside)
                return ""
            self._calls(node.iter, place)
            return self._inner(node, replace(inside, done=place.done | self._done(node.target, node.iter)))
        finally:
            self._loops.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        if not self._near(node):
            return
        guards = frozenset(filter(None, map(self._guard, node.decorator_list)))
        source = "\n".join(self._lines[node.lineno - 1 : node.end_lineno])
        inside = Place(
            function=_joined(place.function, node.name),
            guards=place.guards | guards,
            condition="a decorator for one rank" if ranks.on_one(node) else "",
            is_async=isinstance(node, ast.AsyncFunctionDef) or node.name in self._called_back,
            renames=place.renames or bool(_RENAMES.search(source)),
        )
        loops, self._loops = self._loops, []
        self._block(node.body, inside)
        self._loops = loops

    def _conditional(self, node: ast.If | ast.While, place: Place) -> None:
        self._calls(node.test, place)
        done = frozenset(
            last(call.func.value)
            for call in ast.walk(node.test)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ASKED
        )
        here, there = replace(place, done=place.done | done), place
        if self._conditions.depends(node.test):
            main, words = self._conditions.on_main(node.test), short(node.test)
            loop = self._loops[-1] if self._loops else None
            here = replace(here, condition=f"`{words}`", main=main, loop=loop)
            there = replace(there, condition=f"not `{words}`", main=not main, loop=loop)
        self._block(node.body, here)
        self._block(node.orelse, there)

    def _with(self, node: ast.With | ast.AsyncWith, place: Place) -> str:
        guards = frozenset(filter(None, (self._guard(item.context_expr) for item in node.items)))
        for item in node.items:
            self._calls(item.context_expr, place)
            if isinstance(item.context_expr, ast.Call):
                self._met.append(Met(item.context_expr, place, entered=True))
        return self._block(node.body, replace(place, guards=place.guards | guards))

    def _guard(self, node: ast.expr) -> str:
        """Return what a decorator or the head of a `with` bounds; empty for nothing."""
        named = node.func if isinstance(node, ast.Call) else node
        full, name = self._names.full(named), last(named)
        if full.startswith(calls.OURS):
            return (
                "" if name in calls.NAMES_ONLY or full in calls.NOTES_ONLY else READS if name == "reads" else EVERYTHING
            )
        return FOREIGN if _LIMITED.search(name) else ""

    def _done(self, target: ast.expr, source: ast.expr) -> frozenset[str]:
        """Return the names that stand for futures that are done, in a loop over `as_completed(...)` or `done`."""
        done = any(isinstance(node, ast.Call) and last(node.func) == "as_completed" for node in ast.walk(source))
        if not done and last(source) != "done":
            return frozenset()
        return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))

    def _calls(self, root: ast.AST, place: Place) -> None:
        """Meet the calls of a statement or expression."""
        waiting: list[ast.AST] = [root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Await):
                waiting.extend(ast.iter_child_nodes(node.value))
                continue
            if isinstance(node, ast.comprehension):
                place = replace(place, done=place.done | self._done(node.target, node.iter))
            if isinstance(node, _COMPREHENSIONS):
                for part in node.generators:
                    place = replace(place, done=place.done | self._done(part.target, part.iter))
            if isinstance(node, ast.Call):
                self._met.append(Met(node, place))
                if self._names.full(node.func).startswith(calls.OURS):
                    # What is only handed over is called inside our guard.
                    waiting.extend(part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.Lambda))
                    continue
            waiting.extend(ast.iter_child_nodes(node))


def short(node: ast.AST) -> str:
    """Return the code of a node, cut where it is long."""
    code = ast.unparse(node)
    return code if len(code) <= _LONGEST_CODE else f"{code[: _LONGEST_CODE - 3]}..."


def _joined(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name
