"""What the actions of a rule write at one site: pieces of text, on one tree, that other edits may nest into."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluxguard.errors import PatchError
from fluxguard.patching.rules import Edit
from fluxguard.patching.texts import Text, statement

if TYPE_CHECKING:
    from ast_grep_py import SgNode

MARK = "  # fluxguard: "
MARKED = re.compile(r"  # fluxguard: ([a-z0-9-]+)(?=  #|\r?$)", re.MULTILINE)
_CAPTURED = re.compile(r"(\$\$\$|\$)([A-Z][A-Z0-9_]*)")

# What is written at one and the same place comes in this order: what closes an inner edit before what closes an outer
# one, lines after a statement, lines before the next, decorators, and last what opens or replaces.
_CLOSES, END, _AFTER, _BETWEEN, BEFORE, _DECORATES, START, _OPENS, _REPLACES = range(9)


class EditFailed(PatchError):
    """Raised when an edit cannot be made at a site that its rule found."""

    def __init__(self, rule: str, line: int, reason: str) -> None:
        self.rule = rule
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {rule}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in a text where a rule applies."""

    rule: str
    edit: int
    line: int
    """Counted from 1, in the text that was searched."""
    state: str
    """`new` (to be guarded), `ours` (guarded by this rule already), `theirs` (guarded by somebody else) or `failed`."""
    reason: str = ""
    """Why it cannot be guarded, when it failed."""


@dataclass(frozen=True)
class Splice:
    """A range of a text and what stands there instead."""

    start: int
    end: int
    text: str
    rank: tuple[int, int, int]
    """Its turn among the splices that start at the same place."""
    rule: str


@dataclass(frozen=True)
class Made:
    """What one edit writes at its site."""

    site: Site
    splices: tuple[Splice, ...]
    anchors: tuple[int, ...] = ()
    """Where its mark may stand: at the end of the line of the first of these that takes a comment."""


@dataclass(frozen=True)
class Visit:
    """One edit at one site."""

    source: Text
    node: SgNode
    edit: Edit
    site: Site
    turn: int
    """The place of the rule among the rules."""
    tag: str = ""
    """What the names of its captures begin with in the match."""

    @property
    def mark(self) -> str:
        """The comment that names the rule."""
        return f"{MARK}{self.site.rule}"

    def fail(self, reason: str) -> EditFailed:
        """Return the error for this site."""
        return EditFailed(self.site.rule, self.site.line, reason)


def make(visit: Visit) -> Made | Site:
    """Return what an edit writes, or the site alone when it is guarded already or cannot be changed."""
    try:
        made = _ACTIONS[visit.edit.action](visit)
    except EditFailed as error:
        return replace(visit.site, state="failed", reason=error.reason)
    return made or replace(visit.site, state="ours")


def _replace(visit: Visit) -> Made | None:
    return None if _is_replaced(visit) else _substituted(visit, visit.node, visit.edit.text)


def _callee(visit: Visit) -> Made | None:
    function = visit.node.field("function")
    if function is None:
        raise visit.fail("is not a call")
    return _substituted(visit, function, visit.edit.text)


def _substituted(visit: Visit, node: SgNode, template: str) -> Made | None:
    start, end = node.range().start.index, node.range().end.index
    splices = tuple(_between_captures(visit, node, template))
    return Made(visit.site, splices, anchors=(start, end)) if splices else None


def _between_captures(visit: Visit, node: SgNode, template: str) -> Iterator[Splice]:
    """Yield the text of a template around its captures, which stay as they are, so that edits inside them survive."""
    outer = node.range()
    first, last = outer.start.index, outer.end.index
    captures = [(match, _range(visit, match)) for match in _CAPTURED.finditer(template)]
    ends = [first, *(index for _, found in captures for index in found or ()), last]
    if ends != sorted(ends) or any(found is None for _, found in captures):
        yield Splice(first, last, _filled(visit, template), (_REPLACES, 0, 0), visit.site.rule)
        return
    if not captures and (at := _only_place(node.text(), template)) is not None:  # it is wrapped, and stays as it is
        yield from _around(visit, (first, last), template[:at], template[at + last - first :])
        return
    at, written = first, 0
    for match, found in [*captures, (None, (last, last))]:
        if found is None:
            continue
        text = template[written : match.start() if match else len(template)]
        kind = _OPENS if at == first else _CLOSES if match is None else _BETWEEN
        if (splice := _piece(visit, (first, last), (at, found[0]), text, kind)) is not None:
            yield splice
        at, written = found[1], match.end() if match else 0


def _piece(visit: Visit, node: tuple[int, int], place: tuple[int, int], text: str, kind: int) -> Splice | None:
    """Return how one piece of a template replaces what stood there, or None when only the layout differs."""
    start, end = place
    old = visit.source.text[start:end]
    if "".join(old.split()) == "".join(text.split()):
        return None
    if start > node[0] and "\n" in (space := old[: len(old) - len(old.lstrip())]) and not text[:1].strip():
        start, text = start + len(space), text.lstrip()  # what is over several lines stays so
    if end < node[1] and "\n" in (space := old[len(old.rstrip()) :]):
        end, text = end - len(space), text.rstrip()
    old = visit.source.text[start:end]
    if old and start == node[0] and text.endswith(old) and not _is_word(text[-len(old) - 1]):
        end, text, kind = start, text[: -len(old)], _OPENS
    elif old and text.startswith(old) and not _is_word(text[len(old)]):
        start, text, kind = end, text[len(old) :], _CLOSES if end == node[1] else _BETWEEN
    rank = _rank(visit, node, kind) if start == end else (_REPLACES, 0, 0)
    return Splice(start, end, text, rank, visit.site.rule)


def _around(visit: Visit, node: tuple[int, int], before: str, after: str) -> Iterator[Splice]:
    for place, text, kind in ((node[0], before, _OPENS), (node[1], after, _CLOSES)):
        if text:
            yield Splice(place, place, text, _rank(visit, node, kind), visit.site.rule)


def _rank(visit: Visit, node: tuple[int, int], kind: int) -> tuple[int, int, int]:
    """Return the turn of an insertion: outer edits open earlier and close later, and so do later rules on one node."""
    outer_first, inner_first = (-node[1], -visit.turn), (-node[0], visit.turn)
    return (kind, *(outer_first if kind == _OPENS else inner_first if kind == _CLOSES else (0, visit.turn)))


def _only_place(part: str, text: str) -> int | None:
    """Return where `part` stands in `text` as whole words, if it does so once."""
    found = re.findall(f"(?<!\\w){re.escape(part)}(?!\\w)", text)
    return text.index(part) if len(found) == text.count(part) == 1 and text != part else None


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _is_replaced(visit: Visit) -> bool:
    """Return whether a site is the outcome of its own edit: marked, and of the shape that the edit writes."""
    source, node = visit.source, visit.node
    start, end = node.range().start.index, node.range().end.index
    lines = source.text[source.line_start(start) : source.line_end(end)]
    if f"{visit.mark}  #" not in "".join(f"{line.rstrip()}  #\n" for line in lines.split("\n")):
        return False
    if _shape(visit.edit.text).fullmatch(node.text()):
        return True
    filled = _filled(visit, visit.edit.text)
    offsets = (match.start() for match in re.finditer(f"(?={re.escape(node.text())})", filled))
    return any(offset <= start and source.text.startswith(filled, start - offset) for offset in offsets)


def _shape(template: str) -> re.Pattern[str]:
    """Return what the outcome of a template looks like, whatever was captured."""
    literals = (re.escape(part) for part in _CAPTURED.sub("\0", template).split("\0"))
    return re.compile(".*".join(literals), re.DOTALL)


def _decorate(visit: Visit) -> Made | None:
    return _above(visit, visit.node, _DECORATES)


def _before(visit: Visit) -> Made | None:
    return _above(visit, statement(visit.node), BEFORE)


def _above(visit: Visit, node: SgNode, kind: int) -> Made | None:
    source, indent = visit.source, visit.source.indent(node)
    start = source.line_start(node.range().start.index)
    if indent.strip():
        raise visit.fail("shares its line with another statement")
    above = start
    while above > 0:
        line = source.line(above - 1)
        if _is_written(visit, line):
            return None
        if not MARKED.search(line) and not line.lstrip().startswith("@"):
            break
        above = source.line_start(above - 1)
    text = f"{indent}{_filled(visit, visit.edit.text)}{visit.mark}{source.newline}"
    return Made(visit.site, (Splice(start, start, text, (kind, 0, visit.turn), visit.site.rule),))


def _after(visit: Visit) -> Made | None:
    source, node = visit.source, statement(visit.node)
    indent, first, last = source.indent(node), node.range().start.index, node.range().end.index
    rest = source.text[last : source.line_end(last)].strip()
    if indent.strip() or (rest and not rest.startswith("#")):
        raise visit.fail("shares its line with another statement")
    below = source.next_line(last)
    while below < len(source.text):
        line = source.line(below)
        if _is_written(visit, line):
            return None
        if not MARKED.search(line):
            break
        below = source.next_line(below)
    end = source.line_end(last)
    text = f"{source.newline}{indent}{_filled(visit, visit.edit.text)}{visit.mark}"
    return Made(visit.site, (Splice(end, end, text, (_AFTER, -first, visit.turn), visit.site.rule),))


def _is_written(visit: Visit, line: str) -> bool:
    return writes(visit.edit, visit.site.rule, line)


def writes(edit: Edit, rule: str, line: str) -> bool:
    """Return whether a line, without its line break, is one that an edit adds."""
    mark = f"{MARK}{rule}"
    return line.endswith(mark) and bool(_shape(edit.text).fullmatch(line.removesuffix(mark).strip()))


_ACTIONS = {"replace": _replace, "callee": _callee, "decorate": _decorate, "before": _before, "after": _after}


def _range(visit: Visit, capture: re.Match[str]) -> tuple[int, int] | None:
    """Return where a capture stands; None when it captured nothing."""
    if capture[1] == "$":
        one = visit.node.get_match(visit.tag + capture[2])
        found = [] if one is None else [one]
    else:
        found = visit.node.get_multiple_matches(visit.tag + capture[2])
    return (found[0].range().start.index, found[-1].range().end.index) if found else None


def _filled(visit: Visit, template: str) -> str:
    def captured(match: re.Match[str]) -> str:
        found = _range(visit, match)
        if found is None:
            return match[0] if match[1] == "$" else ""
        return visit.source.text[found[0] : found[1]]

    return _CAPTURED.sub(captured, template)
