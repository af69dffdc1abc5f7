"""A source text with its tree, parsed once, and its lines."""

from __future__ import annotations

from functools import cached_property

from ast_grep_py import SgNode, SgRoot

_LONG_STRINGS = {"kind": "string", "regex": r"\n"}


class Text:
    """What edits look at: offsets count characters, lines count from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = SgRoot(text, "python").root()

    def line_start(self, index: int) -> int:
        """Return where the line starts that holds `index`."""
        return self.text.rfind("\n", 0, index) + 1

    def line_end(self, index: int) -> int:
        """Return where the line ends that holds `index`, its line break left out."""
        return line_end(self.text, index)

    def line(self, index: int) -> str:
        """Return the line that holds `index`, without its line break."""
        return self.text[self.line_start(index) : self.line_end(index)]

    def next_line(self, index: int) -> int:
        """Return where the next line starts, or the end of the text."""
        end = self.text.find("\n", index)
        return len(self.text) if end < 0 else end + 1

    def number(self, index: int) -> int:
        """Return the number of the line that holds `index`."""
        return self.text.count("\n", 0, index) + 1

    def indent(self, node: SgNode) -> str:
        """Return what stands before a node on its line."""
        start = node.range().start.index
        return self.text[self.line_start(start) : start]

    @property
    def newline(self) -> str:
        """The line break of the text, as its first line has it."""
        end = self.text.find("\n")
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    @cached_property
    def long_strings(self) -> tuple[tuple[int, int], ...]:
        """Start and end of the strings that go over several lines: no comment can stand at the end of those."""
        found = self.root.find_all({"rule": _LONG_STRINGS})  # type: ignore[call-overload]
        return tuple((node.range().start.index, node.range().end.index) for node in found)

    def is_in_string(self, index: int) -> bool:
        """Return whether `index` lies inside a string over several lines."""
        return any(start < index < end for start, end in self.long_strings)


def line_end(text: str, index: int) -> int:
    """Return where the line of `text` ends that holds `index`, its line break left out."""
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - 1 if end > index and text[end - 1] == "\r" else end


def statement(node: SgNode) -> SgNode:
    """Return the statement of a block (or of the module) that holds `node`."""
    inner = node
    while (outer := inner.parent()) is not None and outer.kind() not in ("block", "module"):
        inner = outer
    return inner
