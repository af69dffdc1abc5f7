"""The pure core: a text and rules in, another text and its sites out."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluxguard.errors import PatchError
from fluxguard.patching.edits import (
    BEFORE,
    END,
    MARK,
    MARKED,
    START,
    EditFailed,
    Made,
    Site,
    Splice,
    Visit,
    make,
    writes,
)
from fluxguard.patching.places import IMPORT
from fluxguard.patching.rules import Rule
from fluxguard.patching.searching import Wanted, find, wanted
from fluxguard.patching.texts import Text, line_end

if TYPE_CHECKING:
    from ast_grep_py import SgNode

IMPORT_ID = "import"
_FIRST = -1


class Unparsable(PatchError):
    """Raised when a file is not Python that can be compiled, before anything was changed in it."""


def rewrite(text: str, rules: Iterable[Rule], importing: str = IMPORT) -> tuple[str, tuple[Site, ...]]:
    """Return `text` with the sites of `rules` guarded, and the sites; twice is the same as once.

    The text is parsed once, and all edits are made on that one tree. A site that cannot be changed stays as it is and
    has the state `failed`. Raises Unparsable when the text is not Python.
    """
    sought = wanted(tuple(rules), text)
    if not sought:
        return text, ()
    source = Text(text)
    found = list(_found(source, sought))
    made = [one for one in found if isinstance(one, Made)]
    if not made:
        return text, tuple(one for one in found if isinstance(one, Site))
    failed: dict[int, Site] = {}
    try:
        changed = _proven(source, made, importing)
    except EditFailed:
        changed, failed = _one_by_one(source, made, importing)
    return changed, tuple(one if isinstance(one, Site) else failed.get(id(one), one.site) for one in found)


def marks(text: str) -> dict[str, int]:
    """Return how many lines of `text` each rule has marked."""
    counts: dict[str, int] = {}
    for name in MARKED.findall(text):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _found(source: Text, sought: Sequence[Wanted]) -> Iterator[Made | Site]:
    added = _added_lines(source.text, sought)
    for one, node in find(source.root, sought):
        line = source.number(node.range().start.index)
        site = Site(rule=one.rule.id, edit=one.number, line=line, state="theirs" if one.guarded else "new")
        if one.guarded:
            yield site
        elif line not in added:
            yield make(Visit(source, node, one.edit, site, one.turn, one.tag))


def _added_lines(text: str, sought: Sequence[Wanted]) -> frozenset[int]:
    """Return the numbers of the lines that rules have added already; what they copied is nothing to guard again."""
    if MARK not in text:
        return frozenset()
    adding = [one for one in sought if one.edit.action in ("before", "after", "decorate")]
    return frozenset(
        number
        for number, line in enumerate(text.split("\n"), 1)
        if MARK in line and any(writes(one.edit, one.rule.id, line.rstrip()) for one in adding)
    )


def _one_by_one(source: Text, made: Sequence[Made], importing: str) -> tuple[str, dict[int, Site]]:
    """Return the text with as many edits as go together, the earlier ones first, and the sites of the others."""
    kept: list[Made] = []
    failed: dict[int, Site] = {}

    def keep(prove: bool) -> str:
        changed = source.text
        waiting, kept[:] = [one for one in made if id(one) not in failed], []
        for one in waiting:
            try:
                changed = (_proven if prove else _composed)(source, [*kept, one], importing)
                kept.append(one)
            except EditFailed as error:
                failed[id(one)] = replace(one.site, state="failed", reason=error.reason)
        return changed

    keep(prove=False)  # what overlaps is found without compiling
    try:
        return _proven(source, kept, importing) if kept else source.text, failed
    except EditFailed:
        return keep(prove=True), failed


def _proven(source: Text, made: Sequence[Made], importing: str) -> str:
    """Return the text with all of `made`. Raises EditFailed when the result would not compile."""
    changed = _composed(source, made, importing)
    if (error := _compile_error(changed)) is not None:
        if (own := _compile_error(source.text)) is not None:
            raise Unparsable(f"line {own.lineno}: {own.msg}")
        site = made[-1].site
        raise EditFailed(site.rule, site.line, f"the changed text does not compile ({error.msg})")
    return changed


@dataclass(frozen=True)
class _Anchor:
    """A place behind which, at the end of its line, a mark may stand."""

    start: int
    rank: tuple[int, int, int]
    made: int


def _composed(source: Text, made: Sequence[Made], importing: str) -> str:
    """Return the text with all splices and marks. Raises EditFailed when two overlap or a mark has no place."""
    splices = list(dict.fromkeys(splice for one in made for splice in one.splices))
    if (line := _import_line(source, splices, importing)) is not None:
        splices.append(line)
    anchors = [
        _Anchor(index, ((START if turn == 0 else END), 0, 0), number)
        for number, one in enumerate(made)
        for turn, index in enumerate(one.anchors)
    ]
    parts: list[str] = []
    kept: list[tuple[int, int, int]] = []  # of the source: where it stands in the result, where it stood, how long
    places: dict[int, list[int]] = {}
    at = size = 0
    writer = ""
    steps: list[Splice | _Anchor] = [*splices, *anchors]
    for step in sorted(steps, key=lambda step: (step.start, step.rank)):
        if step.start < at:
            raise _overlap(source, step, made, writer)
        kept.append((size, at, step.start - at))
        parts.append(source.text[at : step.start])
        size += step.start - at
        at = step.start
        if isinstance(step, _Anchor):
            places.setdefault(step.made, []).append(size)
            continue
        parts.append(step.text)
        size += len(step.text)
        at, writer = step.end, step.rule
    kept.append((size, at, len(source.text) - at))
    changed = "".join((*parts, source.text[at:]))
    return _marked(source, changed, kept, [(made[number].site, where) for number, where in sorted(places.items())])


def _overlap(source: Text, step: Splice | _Anchor, made: Sequence[Made], writer: str) -> EditFailed:
    rule = step.rule if isinstance(step, Splice) else made[step.made].site.rule
    both = rule if rule == writer else f"{writer} and {rule}"
    return EditFailed(rule, source.number(step.start), f"overlaps another edit ({both})")


def _marked(
    source: Text, changed: str, kept: Sequence[tuple[int, int, int]], wanted: Sequence[tuple[Site, Sequence[int]]]
) -> str:
    """Return `changed` with the marks of its sites, each once per line, in the order of the rules."""
    ends: dict[int, list[str]] = {}
    for site, places in wanted:
        candidates = (line_end(changed, place) for place in places)
        end = next((end for end in candidates if _takes_comment(source, changed, kept, end)), None)
        if end is None:
            raise EditFailed(site.rule, site.line, "its line ends inside a string or goes on: a mark has no place")
        ends.setdefault(end, []).append(site.rule)
    parts: list[str] = []
    at = 0
    for end, rules in sorted(ends.items()):
        known = MARKED.findall(changed[changed.rfind("\n", 0, end) + 1 : end])
        parts += (changed[at:end], *(f"{MARK}{rule}" for rule in dict.fromkeys(rules) if rule not in known))
        at = end
    return "".join((*parts, changed[at:]))


def _takes_comment(source: Text, changed: str, kept: Sequence[tuple[int, int, int]], end: int) -> bool:
    """Return whether a comment may stand at `end` of a line: not inside a string, not behind a backslash."""
    result, origin, length = kept[bisect_right(kept, end, key=lambda piece: piece[0]) - 1]
    written = end > result + length  # by an edit, and not in a string of the source
    return not changed.endswith("\\", 0, end) and (written or not source.is_in_string(origin + end - result))


def _import_line(source: Text, splices: Sequence[Splice], importing: str) -> Splice | None:
    """Return our import, above the first import of a text and below its docstring and the imports from the future."""
    line = f"{importing}{MARK}{IMPORT_ID}"
    if line in source.text:
        return None
    statements = [node for node in source.root.children() if node.is_named() and node.kind() != "comment"]
    body = [node for number, node in enumerate(statements) if not _is_preamble(node, first=number == 0)]
    used = min(splice.start for splice in splices)
    imports = (node for node in body if node.kind() in ("import_statement", "import_from_statement"))
    early = next((node for node in imports if node.range().start.index < used), body[0])
    start = early.range().start.index
    if source.line_start(start) != start:  # it follows a semicolon
        start = source.next_line(start)
    if source.is_in_string(start):
        raise EditFailed(splices[0].rule, source.number(start), "there is no line for the import")
    return Splice(start, start, f"{line}{source.newline}", (BEFORE, _FIRST, 0), IMPORT_ID)


def _is_preamble(node: SgNode, *, first: bool) -> bool:
    child = node.child(0)
    docstring = first and node.kind() == "expression_statement" and child is not None
    return node.kind() == "future_import_statement" or (
        docstring and child is not None and child.kind() in ("string", "concatenated_string")
    )


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
