"""Finding the waits of one file: a walk that knows what is around each call."""

from __future__ import annotations

import ast
import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

from fluxguard.patching import scan_calls as calls
from fluxguard.patching import scan_ranks as ranks
from fluxguard.patching.scan_calls import Kind
from fluxguard.patching.scan_names import Names, last

_HIDING = re.compile(
    r"from\s+(?:torch\.distributed|deepspeed|accelerate\.utils|requests|subprocess|numpy|urllib|concurrent)\b"
)
_MARK = re.compile(r"# fluxguard: ([a-z0-9-]+)")
_MARKS_THAT_BOUND_NOTHING = frozenset({"import", "pulse", "exact-resume"})
_LIMITED = re.compile(r"timeout|time_limit|deadline|fail_after|fail_at|exit_after|move_on_after", re.IGNORECASE)
_RENAMES = re.compile(r"\b(?:os\.replace|os\.rename|shutil\.move)\(|\.replace\(\s*\w*(?:path|file|target)\w*\s*\)")
_SHARDED = re.compile(r"deepspeed|fsdp|distributed_type", re.IGNORECASE)
"""Whoever asks for these knows that every rank has to come then."""
_GATHERS = re.compile(r"barrier|collective|everyone|gather|reduce|broadcast")
_ASKED = ("done", "empty", "qsize")
"""Who asks for these before it takes, does not wait."""
_CALLED_BACK = re.compile(r"add_done_callback\(\s*(?:self\.)?(\w+)")
_BODIES = ("body", "orelse", "finalbody")
_EVERYTHING, _READS, _FOREIGN = "everything", "reads", "foreign"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One call that waits, unguarded or on some ranks only."""

    line: int
    kind: Kind
    function: str
    """The enclosing function, with its class; empty at module level."""
    code: str
    condition: str = ""
    """The condition on the rank under which the call stands; empty when every rank comes here."""


@dataclass(frozen=True)
class _Place:
    """What is around a statement."""

    function: str = ""
    guards: frozenset[str] = frozenset()
    condition: str = ""
    main: bool = True
    """Whether the condition holds on the main rank."""
    done: frozenset[str] = frozenset()
    """Futures that are known to be done, and queues that are known to hold something."""
    is_async: bool = False
    """Whether nothing here blocks: an asyncio function, or one that is called when a future is done."""
    renames: bool = False
    """Whether the function renames files, as a whole write does."""


@dataclass(frozen=True)
class _Gathering:
    """A call for which every rank has to come, under a condition."""

    callee: str
    main: bool
    wait: Wait


def may_wait(text: str) -> bool:
    """Whether a text can hold a wait at all; most files are done with here."""
    return any(word in text for word in calls.CANDIDATES) or bool(_HIDING.search(text))


def waits(text: str, guarded_lines: Set[int] = frozenset()) -> list[Wait]:
    """Return the waits of one file, by line; those on `guarded_lines` are guarded by what a rule knows.

    Raises SyntaxError, or ValueError for null bytes, when the text is not Python.
    """
    return _Reader(text, ast.parse(text), guarded_lines).found()


class _Reader:
    def __init__(self, text: str, tree: ast.Module, guarded_lines: Set[int]) -> None:
        self._tree = tree
        self._lines = text.split("\n")
        self._names = Names(_statements(tree.body))
        self._candidates = _candidates(text, self._names)
        marked = (number for number in self._candidates if self._marked(number))
        self._guarded = {*guarded_lines, *marked}
        self._called_back = frozenset(_CALLED_BACK.findall(text))
        self._waits: list[Wait] = []
        self._gatherings: dict[str, list[_Gathering]] = defaultdict(list)

    def found(self) -> list[Wait]:
        """Return what was found, by line."""
        self._block(self._tree.body, _Place())
        for together in self._gatherings.values():
            callees = {one.callee for one in together}
            for same in ([one for one in together if one.callee == callee] for callee in callees):
                # Calls on the main rank's side and on the others': they meet, as in "main first".
                if len({one.main for one in same}) == 1:
                    self._waits += [one.wait for one in same]
        kept = {(wait.line, wait.code): wait for wait in sorted(self._waits, key=lambda wait: wait.condition)}
        return sorted(kept.values(), key=lambda wait: wait.line)

    def _marked(self, number: int) -> bool:
        return bool(set(_MARK.findall(self._lines[number - 1])) - _MARKS_THAT_BOUND_NOTHING)

    def _near(self, node: ast.stmt | ast.expr | ast.excepthandler | ast.match_case) -> bool:
        """Whether the lines of a node can hold a wait."""
        if isinstance(node, ast.match_case):
            return True
        at = bisect.bisect_left(self._candidates, node.lineno)
        return at < len(self._candidates) and self._candidates[at] <= (node.end_lineno or node.lineno)

    def _block(self, body: list[ast.stmt], place: _Place) -> str:
        """Read a block; return the condition under which the code behind it still runs, if some ranks have left."""
        left = ""
        for statement in body:
            gone = self._statement(statement, place)
            if gone:
                left = gone
            elif isinstance(statement, ast.If) and ranks.depends(statement.test):
                out = ranks.way_out(statement.body)
                gone = f"`{_short(statement.test)}` left in line {statement.lineno}" if out else ""
                left = gone if out == "function" else left
            if gone:
                holds = _on_main(statement.test) if isinstance(statement, ast.If) else not place.main
                place = replace(place, condition=gone, main=not holds)
        return left

    def _statement(self, node: ast.stmt, place: _Place) -> str:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, place)
        elif isinstance(node, ast.ClassDef):
            if self._near(node):
                self._block(node.body, replace(place, function=_joined(place.function, node.name)))
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) and not self._near(node):
            return self._inner(node, place)
        elif not self._near(node):
            return ""
        elif isinstance(node, (ast.If, ast.While)):
            self._conditional(node, place)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, place)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._calls(node.iter, place)
            return self._inner(node, replace(place, done=place.done | self._done(node.target, node.iter)))
        elif isinstance(node, (ast.Try, ast.Match)) or type(node).__name__ == "TryStar":
            return self._inner(node, place)
        else:
            self._calls(node, place)
        return ""

    def _inner(self, node: ast.stmt, place: _Place) -> str:
        left = ""
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(node, name, ()) if name in ("handlers", "cases") else (node,):
                body = getattr(part, "body" if part is not node else name, [])
                if body and isinstance(body, list):
                    left = self._block(body, place) or left
        return left

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: _Place) -> None:
        if not self._near(node):
            return
        guards = frozenset(filter(None, map(self._guard, node.decorator_list)))
        source = "\n".join(self._lines[node.lineno - 1 : node.end_lineno])
        inside = _Place(
            function=_joined(place.function, node.name),
            guards=place.guards | guards,
            condition="a decorator for one rank" if ranks.on_one(node) else "",
            is_async=isinstance(node, ast.AsyncFunctionDef) or node.name in self._called_back,
            renames=place.renames or bool(_RENAMES.search(source)),
        )
        self._block(node.body, inside)

    def _conditional(self, node: ast.If | ast.While, place: _Place) -> None:
        self._calls(node.test, place)
        done = frozenset(
            last(call.func.value)
            for call in ast.walk(node.test)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ASKED
        )
        here, there = replace(place, done=place.done | done), place
        if ranks.depends(node.test):
            main, words = _on_main(node.test), _short(node.test)
            here = replace(here, condition=f"`{words}`", main=main)
            there = replace(there, condition=f"not `{words}`", main=not main)
        self._block(node.body, here)
        self._block(node.orelse, there)

    def _with(self, node: ast.With | ast.AsyncWith, place: _Place) -> str:
        guards = frozenset(filter(None, (self._guard(item.context_expr) for item in node.items)))
        for item in node.items:
            call = item.context_expr
            self._calls(call, place)
            if isinstance(call, ast.Call) and last(call.func) in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
                self._note(call, calls.EXECUTOR, place)
        return self._block(node.body, replace(place, guards=place.guards | guards))

    def _guard(self, node: ast.expr) -> str:
        """Return what a decorator or the head of a `with` bounds; empty for nothing."""
        named = node.func if isinstance(node, ast.Call) else node
        name = last(named)
        if self._names.full(named).startswith(calls.OURS):
            return "" if name in calls.NAMES_ONLY else _READS if name == "reads" else _EVERYTHING
        return _FOREIGN if _LIMITED.search(name) else ""

    def _done(self, target: ast.expr, source: ast.expr) -> frozenset[str]:
        """Return the names that stand for futures that are done, in a loop over `as_completed(...)` or `done`."""
        done = any(isinstance(node, ast.Call) and last(node.func) == "as_completed" for node in ast.walk(source))
        if not done and last(source) != "done":
            return frozenset()
        return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))

    def _calls(self, root: ast.AST, place: _Place) -> None:
        """Note the calls of a statement or expression."""
        waiting: list[ast.AST] = [root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Await):
                waiting.extend(ast.iter_child_nodes(node.value))
                continue
            if isinstance(node, ast.comprehension):
                place = replace(place, done=place.done | self._done(node.target, node.iter))
            if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
                for part in node.generators:
                    place = replace(place, done=place.done | self._done(part.target, part.iter))
            if isinstance(node, ast.Call):
                self._call(node, place)
                if self._names.full(node.func).startswith(calls.OURS):
                    # What is only handed over is called inside our guard.
                    waiting.extend(part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.Lambda))
                    continue
            waiting.extend(ast.iter_child_nodes(node))

    def _call(self, node: ast.Call, place: _Place) -> None:
        if self._names.full(node.func).startswith(calls.OURS):
            if place.condition and _GATHERS.search(last(node.func)):
                self._gather(node, calls.BARRIER, place)
            return
        kind = calls.kind_of(node, self._names)
        if kind is None or self._is_done(node, kind, place):
            return
        if kind is calls.WRITE and (place.renames or _into_open_file(node)):
            return
        if (
            kind.across
            and place.condition
            and not (kind in (calls.SAVE, calls.LOAD) and _SHARDED.search(place.condition))
        ):
            self._gather(node, kind, place)
        self._note(node, kind, place)

    def _is_done(self, node: ast.Call, kind: Kind, place: _Place) -> bool:
        if kind not in (calls.FUTURE, calls.QUEUE, calls.WAIT, calls.JOIN) or not isinstance(node.func, ast.Attribute):
            return False
        # In asyncio these make something to be awaited, with a limit perhaps; the result of a task never blocks.
        return place.is_async or last(node.func.value) in place.done

    def _gather(self, node: ast.Call, kind: Kind, place: _Place) -> None:
        found = replace(self._wait(node, kind, place), condition=place.condition)
        self._gatherings[place.function].append(_Gathering(last(node.func), place.main, found))

    def _note(self, node: ast.Call, kind: Kind, place: _Place) -> None:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        # np.load reads next to nothing: the data is read later, when its keys are, and outside of a foreign limit.
        foreign = _FOREIGN in place.guards and kind is not calls.READ
        guarded = foreign or _EVERYTHING in place.guards or (kind.reads and _READS in place.guards)
        if not guarded and self._guarded.isdisjoint(lines):
            self._waits.append(self._wait(node, kind, place))

    def _wait(self, node: ast.Call, kind: Kind, place: _Place) -> Wait:
        # The line of the name, not of the first line of a chain over several.
        line = node.func.end_lineno or node.lineno
        return Wait(line=line, kind=kind, function=place.function, code=_short(node))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements, at any depth."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BODIES:
            waiting.extend(getattr(node, name, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            waiting.extend(part.body)


def _candidates(text: str, names: Names) -> list[int]:
    """Return the lines that may hold a wait."""
    hidden = [re.escape(name) for name, full in names.shortened() if calls.may_hide(full)]
    starts = [start for word in calls.CANDIDATES for start in _places(word, text)]
    if hidden:
        starts += [found.start() for found in re.finditer(rf"\b(?:{'|'.join(hidden)})\b", text)]
    ends = list(_places("\n", text))
    return sorted({bisect.bisect_left(ends, start) + 1 for start in starts})


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _joined(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


def _on_main(test: ast.expr) -> bool:
    """Whether a condition on the rank is the one that holds on the main rank."""
    if isinstance(test, ast.BoolOp):
        return _on_main(next((part for part in test.values if ranks.depends(part)), test.values[0]))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _on_main(test.operand) if ranks.depends(test.operand) else True
    if isinstance(test, ast.Compare):
        return not isinstance(test.ops[0], (ast.NotEq, ast.NotIn, ast.Gt))
    return True


def _into_open_file(call: ast.Call) -> bool:
    """Whether np.save writes into a file object by the name such things have."""
    return bool(call.args) and last(call.args[0]) in ("f", "fh", "file", "fp", "stream", "buffer")


_LONGEST_CODE = 120


def _short(node: ast.AST) -> str:
    code = ast.unparse(node)
    return code if len(code) <= _LONGEST_CODE else f"{code[: _LONGEST_CODE - 3]}..."
