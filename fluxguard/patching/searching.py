"""Finding the sites of many edits in one walk through a tree: the walk is what costs, not the looking."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ast_grep_py import SgNode, SgRoot

Find = Mapping[str, Any]
"""An ast-grep rule."""

_CAPTURE = re.compile(r"\$+[A-Z_][A-Z0-9_]*")  # alone, it matches a node of any kind


def found(root: SgNode, finds: Sequence[Find]) -> Iterator[tuple[int, SgNode]]:
    """Yield (number of the rule, node with what it captured) for each match of `finds` in `root`."""
    if not finds:
        return
    asked = [(number, find, kinds_of(find)) for number, find in enumerate(finds)]
    for node in root.find_all({"rule": {"any": list(finds)}}):  # type: ignore[call-overload]
        kind = node.kind()
        for number, find, kinds in asked:
            if kinds is not None and kind not in kinds:
                continue
            # The node itself is the first that its own search meets; only that one holds what this rule captures.
            if node.matches(**find) and (match := node.find({"rule": find})) is not None:
                yield number, match


def kinds_of(find: Find) -> frozenset[str] | None:
    """Return the kinds of node that a rule can match, or None where that cannot be told without looking."""
    known: list[frozenset[str]] = []
    if "kind" in find:
        known.append(frozenset({find["kind"]}))
    if isinstance(pattern := find.get("pattern"), str) and not _CAPTURE.fullmatch(pattern.strip()):
        known.append(_kinds_of_pattern(pattern))
    known += [kinds for one in find.get("all", ()) if (kinds := kinds_of(one)) is not None]
    if "any" in find:
        choices = [kinds_of(one) for one in find["any"]]
        if None not in choices:
            known.append(frozenset().union(*(kinds for kinds in choices if kinds)))
    return frozenset.intersection(*known) if known else None


def _kinds_of_pattern(pattern: str) -> frozenset[str]:
    """Return the kinds of the nodes that span a whole pattern, of which ast-grep takes one."""
    # As ast-grep does: a letter that Python allows in a name stands for the sign of a capture.
    node = SgRoot(pattern.replace("$", "\u00b5"), "python").root()
    kinds: set[str] = set()
    while True:
        kinds.add(node.kind())
        children = node.children()
        if len(children) != 1:
            return frozenset(kinds)
        node = children[0]
