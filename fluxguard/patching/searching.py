"""All edits of all rules found in one walk over a tree: the walk is what searching costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluxguard.patching.rules import Edit, Rule, Words

if TYPE_CHECKING:
    from ast_grep_py import SgNode

_CAPTURE = re.compile(r"(\$\$\$|\$)([A-Z][A-Z0-9_]*)")
_ANYTHING = {"pattern": "$_"}


@dataclass(frozen=True)
class Wanted:
    """One thing to find: where an edit applies, or where somebody else guards already."""

    rule: Rule
    turn: int
    """The place of the rule among the rules."""
    number: int
    """The place of the edit in its rule."""
    guarded: bool

    @property
    def edit(self) -> Edit:
        """The edit."""
        return self.rule.edits[self.number]

    @property
    def find(self) -> Mapping[str, Any]:
        """What to find."""
        return (self.edit.guarded if self.guarded else self.edit.find) or {}

    @property
    def tag(self) -> str:
        """What captures of this are called, so that those of others are not taken for them."""
        return f"E{self.turn}_{self.number}{'G' if self.guarded else ''}_"


def wanted(rules: Sequence[Rule], text: str) -> tuple[Wanted, ...]:
    """Return what may be found in a text, told by the words in it."""
    words = Words(text)
    return tuple(
        Wanted(rule, turn, number, guarded)
        for turn, rule in enumerate(rules)
        for number, edit in enumerate(rule.edits)
        if edit.may_be_in(words)
        for guarded in ((False, True) if edit.guarded is not None else (False,))
    )


def find(root: SgNode, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, SgNode]]:
    """Yield each thing wanted with each node where it is, in the order wanted, then in that of the text.

    A node that any of them matches is then asked which of them do; each leaves its name there as a capture.
    """
    if not wanted:
        return
    tried = [
        {"any": [{"all": [_renamed(one.find, one.tag, inside=False), {"pattern": f"${one.tag}"}]}, _ANYTHING]}
        for one in wanted
    ]
    rule = {"all": [{"any": [one.find for one in wanted]}, *tried]}
    nodes = root.find_all({"rule": rule})  # type: ignore[call-overload]
    for one in wanted:
        yield from ((one, node) for node in nodes if node.get_match(one.tag) is not None)


def _renamed(value: Any, tag: str, *, inside: bool) -> Any:
    """Return a part of a rule with its captures renamed; they are written in patterns alone."""
    if isinstance(value, Mapping):
        return {key: _renamed(part, tag, inside=inside or key == "pattern") for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, tag, inside=inside) for part in value]
    return _CAPTURE.sub(rf"\g<1>{tag}\g<2>", value) if inside and isinstance(value, str) else value
