"""Finding in one file what waits, what only some ranks come to, and what is set up wrong for several."""

from __future__ import annotations

import ast
import bisect
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

from fluxguard.patching import scan_calls as calls
from fluxguard.patching import scan_kinds as kinds
from fluxguard.patching import scan_leaving as leaving
from fluxguard.patching import scan_setups as setups
from fluxguard.patching import scan_walk as walk
from fluxguard.patching.scan_kinds import Kind
from fluxguard.patching.scan_names import Names, is_constant, last, statements, word
from fluxguard.patching.scan_ranks import Conditions
from fluxguard.patching.scan_walk import Met, Place, Walk, short

_HIDING = re.compile(
    r"from\s+(?:torch\.distributed|deepspeed|accelerate\.utils|requests|subprocess|numpy|urllib|concurrent|torcheval)\b"
)
_MARK = re.compile(r"# fluxguard: ([a-z0-9-]+)")
_MARKS_THAT_BOUND_NOTHING = frozenset({"import", "pulse", "exact-resume"})
_SHARDED = re.compile(r"deepspeed|fsdp|distributed_type", re.IGNORECASE)
"""Whoever asks for these knows that every rank has to come then."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One call that waits unguarded, that some ranks only come to, or that is wrong in itself."""

    line: int
    kind: Kind
    function: str
    """The enclosing function, with its class; empty at module level."""
    code: str
    condition: str = ""
    """The condition on the rank under which the call stands; empty when every rank comes here."""
    through: str = ""
    """What the called function of this file comes to, when it is that for which every rank has to come."""


@dataclass(frozen=True)
class _Gathering:
    """A call for which every rank has to come, under a condition."""

    callee: str
    main: bool
    found: Found


def may_hold(text: str) -> bool:
    """Whether a text can hold a finding at all; most files are done with here."""
    return any(word in text for word in calls.CANDIDATES) or bool(_HIDING.search(text)) or leaving.may_leave(text)


def find(text: str, guarded_lines: Set[int] = frozenset(), *, sets_epoch: bool = False) -> list[Found]:
    """Return what is found in one file, by line; what is on `guarded_lines` is guarded by what a rule knows.

    `sets_epoch` tells whether another file of the repository sets the epoch of samplers. Raises SyntaxError, or
    ValueError for null bytes, when the text is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler says about the code of others is not what was asked for
        tree = ast.parse(text)
    return _Reader(text, tree, guarded_lines, sets_epoch=sets_epoch).found()


class _Reader:
    def __init__(self, text: str, tree: ast.Module, guarded_lines: Set[int], *, sets_epoch: bool) -> None:
        self._text = text
        self._sets_epoch = sets_epoch
        every = list(statements(tree.body))
        self._names = Names(every, text)
        self._conditions = Conditions(every, text)
        self._walk = Walk(text, tree, self._names, self._conditions)
        self._lines = _candidates(text, self._names)
        written = text.split("\n")
        marked = (at for at in self._lines if set(_MARK.findall(written[at - 1])) - _MARKS_THAT_BOUND_NOTHING)
        self._guarded = {*guarded_lines, *marked}
        self._found: list[Found] = []
        self._gatherings: dict[str, list[_Gathering]] = defaultdict(list)
        self._across: dict[str, Found] = {}
        """Functions in which every rank has to come to something, each with the first such call."""

    def found(self) -> list[Found]:
        """Return what was found, by line."""
        for met in self._walk.over(self._lines):
            self._look(met)
        if self._across and self._conditions.any:
            self._look_through()
        for together in self._gatherings.values():
            callees = {one.callee for one in together}
            for same in ([one for one in together if one.callee == callee] for callee in callees):
                # Calls on the main rank's side and on the others': they meet, as in "main first".
                if len({one.main for one in same}) == 1:
                    self._found += [one.found for one in same]
        kept = {
            (found.line, found.code, found.kind.name if not found.kind.waits else ""): found
            for found in sorted(self._found, key=lambda found: found.condition)
        }
        return sorted(kept.values(), key=lambda found: found.line)

    def _look(self, met: Met) -> None:
        node, place = met.node, met.place
        if not isinstance(node, ast.Call):
            if leaving.misses_steps(node, place):
                self._found.append(replace(self._one(node, kinds.LEAVES, place), condition=place.condition))
        elif met.entered:
            if last(node.func) in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
                self._note(node, kinds.EXECUTOR, place)
        else:
            self._call(node, place)

    def _call(self, node: ast.Call, place: Place) -> None:
        gathers = calls.ours(node, self._names)
        kind = gathers or calls.kind_of(node, self._names)
        if kind is not None and kind.across and not _in_a_group(node):
            self._gather(node, kind, place)
        for flaw in setups.flaws(node, self._names, place.function, sets_epoch=self._sets_epoch):
            if not (flaw is kinds.PLACED and place.condition) and self._unmarked(node):
                self._found.append(self._one(node, flaw, place))
        limited = calls.bounded(node) and last(node.func) != "DataLoader"
        if kind is None or gathers or limited or not kind.everywhere or _is_done(node, kind, place):
            return
        if not (kind is kinds.WRITE and (place.renames or _into_open_file(node))):
            self._note(node, kind, place)

    def _gather(self, node: ast.Call, kind: Kind, place: Place) -> None:
        found = self._one(node, kind, place)
        if not place.condition:
            self._across.setdefault(place.function, found)
        elif not (kind.name == kinds.SAVE.name and _SHARDED.search(place.condition)):
            found = replace(found, condition=place.condition)
            self._gatherings[place.function].append(_Gathering(last(node.func), place.main, found))

    def _look_through(self) -> None:
        """Find calls on some ranks of functions of this file in which every rank has to come."""
        inner = {function.rpartition(".")[2] for function in self._across if function}
        if not inner:
            return
        called = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(inner)))})\(")
        for met in list(self._walk.over(_lines_of(self._text, (one.start() for one in called.finditer(self._text))))):
            function = _called(met)
            there = self._across.get(function) if function else None
            if there is None or not met.place.condition or not isinstance(met.node, ast.Call):
                continue
            found = replace(
                self._one(met.node, there.kind, met.place),
                condition=met.place.condition,
                through=f"{last(met.node.func)}() comes to {there.code} in line {there.line}",
            )
            if not _SHARDED.search(met.place.condition):
                self._gatherings[met.place.function].append(_Gathering(last(met.node.func), met.place.main, found))

    def _note(self, node: ast.Call, kind: Kind, place: Place) -> None:
        # np.load reads next to nothing: the data is read later, when its keys are, and outside of a foreign limit.
        foreign = walk.FOREIGN in place.guards and kind is not kinds.READ
        guarded = foreign or walk.EVERYTHING in place.guards or (kind.reads and walk.READS in place.guards)
        if not guarded and self._unmarked(node):
            self._found.append(self._one(node, kind, place))

    def _unmarked(self, node: ast.Call) -> bool:
        return self._guarded.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def _one(self, node: ast.Call | walk.Leaving, kind: Kind, place: Place) -> Found:
        # The line of the name, not of the first line of a chain over several.
        line = node.func.end_lineno if isinstance(node, ast.Call) else None
        return Found(line=line or node.lineno, kind=kind, function=place.function, code=short(node))


def _called(met: Met) -> str:
    """Return the function of this file that a call means: `work()`, or `self.work()` in the same class."""
    func = met.node.func if isinstance(met.node, ast.Call) else None
    if isinstance(func, ast.Name):
        return func.id
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self":
        owner = met.place.function.rpartition(".")[0]
        return f"{owner}.{func.attr}" if owner else ""
    return ""


def _in_a_group(call: ast.Call) -> bool:
    """Whether a call is for the ranks of a group that is not all of them."""
    group = word(call, "group") or next((value for value in call.args if last(value).endswith("group")), None)
    return group is not None and not is_constant(group, None) and last(group) != "WORLD"


def _is_done(node: ast.Call, kind: Kind, place: Place) -> bool:
    if kind not in (kinds.FUTURE, kinds.QUEUE, kinds.WAIT, kinds.JOIN) or not isinstance(node.func, ast.Attribute):
        return False
    # In asyncio these make something to be awaited, with a limit perhaps; the result of a task never blocks.
    return place.is_async or last(node.func.value) in place.done


def _into_open_file(call: ast.Call) -> bool:
    """Whether np.save writes into a file object by the name such things have."""
    return bool(call.args) and last(call.args[0]) in ("f", "fh", "file", "fp", "stream", "buffer")


def _candidates(text: str, names: Names) -> list[int]:
    """Return the lines that may hold a finding."""
    hidden = [re.escape(name) for name, full in names.shortened() if calls.may_hide(full)]
    starts = [start for word in calls.CANDIDATES for start in _places(word, text)]
    if hidden:
        starts += [found.start() for found in re.finditer(rf"\b(?:{'|'.join(hidden)})\b", text)]
    if leaving.may_leave(text):
        starts += [found.start() for found in leaving.WAYS_OUT.finditer(text)]
    return _lines_of(text, starts)


def _lines_of(text: str, starts: Iterable[int]) -> list[int]:
    ends = list(_places("\n", text))
    return sorted({bisect.bisect_left(ends, start) + 1 for start in starts})


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)
