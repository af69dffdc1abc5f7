"""The pure core: a text and rules in, another text and its sites out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ast_grep_py import SgNode, SgRoot

from fluxguard.errors import PatchError
from fluxguard.patching.rules import Edit, Rule

MARK = "  # fluxguard: "
IMPORT = "import fluxguard"
IMPORT_ID = "import"
_CAPTURED = re.compile(r"(\$\$\$|\$)([A-Z][A-Z0-9_]*)")
_MARKED = re.compile(r"  # fluxguard: ([a-z0-9-]+)(?=  #|\r?$)", re.MULTILINE)


class Unparsable(PatchError):
    """Raised when a file is not Python that can be compiled, before anything was changed in it."""


class EditFailed(PatchError):
    """Raised when an edit cannot be made at a site that its rule found."""

    def __init__(self, rule: str, line: int, reason: str) -> None:
        self.rule = rule
        self.line = line
        super().__init__(f"line {line}: {rule}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in a text where a rule applies."""

    rule: str
    edit: int
    line: int
    """Counted from 1, in the text that was searched."""
    state: str
    """`new` (to be guarded), `ours` (guarded by this rule already) or `theirs` (guarded by somebody else)."""


@dataclass(frozen=True)
class _Change:
    start: int
    end: int
    text: str


class _Text:
    """A text with the lines of it and the captures of a match."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = SgRoot(text, "python").root()

    def line_start(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def line_end(self, index: int) -> int:
        """Return where the line ends that holds `index`, its line break left out."""
        end = self.text.find("\n", index)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > index and self.text[end - 1] == "\r" else end

    def line(self, index: int) -> str:
        return self.text[self.line_start(index) : self.line_end(index)]

    def next_line(self, index: int) -> int:
        end = self.text.find("\n", index)
        return len(self.text) if end < 0 else end + 1

    @property
    def newline(self) -> str:
        end = self.text.find("\n")
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    def number(self, index: int) -> int:
        return self.text.count("\n", 0, index) + 1


def rewrite(text: str, rules: Iterable[Rule]) -> tuple[str, tuple[Site, ...]]:
    """Return `text` with every site of `rules` guarded, and the sites; twice is the same as once.

    Raises Unparsable when the text is not Python, EditFailed when a rule finds a site that it cannot change so that
    the result compiles.
    """
    sites: list[Site] = []
    changed = text
    for rule in rules:
        if any(edit.needs in text for edit in rule.edits):
            changed, found = _apply(changed, rule)
            sites += found
    if changed != text:
        changed = _imported(changed)
        _prove(text, changed, sites)
    return changed, tuple(sites)


def marks(text: str) -> dict[str, int]:
    """Return how many lines of `text` each rule has marked."""
    counts: dict[str, int] = {}
    for name in _MARKED.findall(text):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _apply(text: str, rule: Rule) -> tuple[str, list[Site]]:
    source = _Text(text)
    sites: list[Site] = []
    changes: list[_Change] = []
    marked: set[int] = set()
    mark = MARK + rule.id
    for number, edit in enumerate(rule.edits):
        if edit.needs not in text:
            continue
        for node in source.root.find_all({"rule": edit.find}):  # type: ignore[call-overload]
            line = source.number(node.range().start.index)
            made = _ACTIONS[edit.action](source, node, edit, mark, rule.id)
            sites.append(Site(rule=rule.id, edit=number, line=line, state="new" if made else "ours"))
            changes += [change for change in made if change.text != mark or change.start not in marked]
            marked.update(change.start for change in made if change.text == mark)
        if edit.guarded is not None:
            sites += [
                Site(rule=rule.id, edit=number, line=source.number(node.range().start.index), state="theirs")
                for node in source.root.find_all({"rule": edit.guarded})  # type: ignore[call-overload]
            ]
    return _changed(text, changes, rule.id), sites


def _changed(text: str, changes: Sequence[_Change], rule: str) -> str:
    parts: list[str] = []
    at = 0
    for change in sorted(changes, key=lambda change: (change.start, change.end)):
        if change.start < at:
            raise EditFailed(rule, text.count("\n", 0, change.start) + 1, "two edits overlap")
        parts += (text[at : change.start], change.text)
        at = change.end
    return "".join((*parts, text[at:]))


def _replace(source: _Text, node: SgNode, edit: Edit, mark: str, rule: str) -> list[_Change]:
    return _substituted(source, node, _filled(source.text, node, edit.text), mark)


def _callee(source: _Text, node: SgNode, edit: Edit, mark: str, rule: str) -> list[_Change]:
    function = node.field("function")
    if function is None:
        raise EditFailed(rule, source.number(node.range().start.index), "is not a call")
    return _substituted(source, function, edit.text, mark)


def _substituted(source: _Text, node: SgNode, text: str, mark: str) -> list[_Change]:
    start, end = node.range().start.index, node.range().end.index
    if source.text[start:end] == text or f"{mark}  #" in f"{source.line(start)}  #":
        return []
    first, line_break, rest = text.partition("\n")
    if line_break:  # of a text over several lines, the first one is what changed
        carriage = "\r" if first.endswith("\r") else ""
        return [_Change(start, end, f"{first.removesuffix(carriage)}{mark}{carriage}\n{rest}")]
    line_end = source.line_end(end)
    return [_Change(start, end, text), _Change(line_end, line_end, mark)]


def _decorate(source: _Text, node: SgNode, edit: Edit, mark: str, rule: str) -> list[_Change]:
    return _inserted_before(source, node, edit.text, mark, rule)


def _before(source: _Text, node: SgNode, edit: Edit, mark: str, rule: str) -> list[_Change]:
    return _inserted_before(source, _statement(node), _filled(source.text, node, edit.text), mark, rule)


def _inserted_before(source: _Text, node: SgNode, text: str, mark: str, rule: str) -> list[_Change]:
    start = source.line_start(node.range().start.index)
    indent = source.text[start : node.range().start.index]
    if indent.strip():
        raise EditFailed(rule, source.number(start), "shares its line with another statement")
    added = f"{indent}{text}{mark}"
    above = start
    while above > 0:
        line = source.line(above - 1)
        if line == added:
            return []
        if not _MARKED.search(line) and not line.lstrip().startswith("@"):
            break
        above = source.line_start(above - 1)
    return [_Change(start, start, added + source.newline)]


def _after(source: _Text, node: SgNode, edit: Edit, mark: str, rule: str) -> list[_Change]:
    statement = _statement(node)
    first, last = statement.range().start.index, statement.range().end.index
    indent = source.text[source.line_start(first) : first]
    rest = source.text[last : source.line_end(last)].strip()
    if indent.strip() or (rest and not rest.startswith("#")):
        raise EditFailed(rule, source.number(first), "shares its line with another statement")
    added = f"{indent}{_filled(source.text, node, edit.text)}{mark}"
    below = source.next_line(last)
    while below < len(source.text):
        line = source.line(below)
        if line == added:
            return []
        if not _MARKED.search(line):
            break
        below = source.next_line(below)
    end = source.line_end(last)
    return [_Change(end, end, source.newline + added)]


_ACTIONS = {"replace": _replace, "callee": _callee, "decorate": _decorate, "before": _before, "after": _after}


def _statement(node: SgNode) -> SgNode:
    """Return the statement of a block (or of the module) that holds `node`."""
    inner = node
    while (outer := inner.parent()) is not None and outer.kind() not in ("block", "module"):
        inner = outer
    return inner


def _filled(text: str, node: SgNode, template: str) -> str:
    def captured(match: re.Match[str]) -> str:
        if match[1] == "$":
            one = node.get_match(match[2])
            return match[0] if one is None else one.text()
        many = node.get_multiple_matches(match[2])
        return text[many[0].range().start.index : many[-1].range().end.index] if many else ""

    return _CAPTURED.sub(captured, template)


def _imported(text: str) -> str:
    """Return `text` with our import above its first import, below its docstring and the imports from the future."""
    if f"{IMPORT}{MARK}{IMPORT_ID}" in text:
        return text
    source = _Text(text)
    statements = [node for node in source.root.children() if node.is_named() and node.kind() != "comment"]
    body = [node for number, node in enumerate(statements) if not _is_preamble(node, first=number == 0)]
    first = body[0]
    imports = (node for node in body if node.kind() in ("import_statement", "import_from_statement"))
    used = text.find("fluxguard.")
    place = next((node for node in imports if node.range().start.index < used), first)
    start = place.range().start.index
    added = f"{IMPORT}{MARK}{IMPORT_ID}{source.newline}"
    if source.line_start(start) != start:  # it follows a semicolon
        start = source.next_line(start)
    return text[:start] + added + text[start:]


def _is_preamble(node: SgNode, *, first: bool) -> bool:
    return node.kind() == "future_import_statement" or (
        first and node.kind() == "expression_statement" and node.child(0) is not None and _is_string(node)
    )


def _is_string(node: SgNode) -> bool:
    child = node.child(0)
    return child is not None and child.kind() in ("string", "concatenated_string")


def _prove(before: str, after: str, sites: Sequence[Site]) -> None:
    """Raise unless `after` compiles and every mark in it is a comment, not a part of a string."""
    if (error := _compile_error(after)) is not None:
        if (own := _compile_error(before)) is not None:
            raise Unparsable(f"line {own.lineno}: {own.msg}")
        raise EditFailed(sites[0].rule, error.lineno or 0, f"the changed text does not compile ({error.msg})")
    comments = SgRoot(after, "python").root().find_all(kind="comment")
    seen = sum(_MARKED.search("  " + comment.text()) is not None for comment in comments)
    if seen != sum(_MARKED.search(line) is not None for line in after.split("\n")):
        raise EditFailed(sites[0].rule, 0, "a mark would stand inside a string")


def _compile_error(text: str) -> SyntaxError | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<checkout>", "exec", dont_inherit=True)
        except SyntaxError as error:
            return error
        except ValueError as error:  # null bytes, on Pythons before 3.12
            return SyntaxError(str(error))
    return None
