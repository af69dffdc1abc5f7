"""What names mean in one file: imports, and what was made by a constructor whose waits are known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

MADE_BY = {
    "ThreadPoolExecutor": "executor",
    "ProcessPoolExecutor": "executor",
    "Queue": "queue",
    "SimpleQueue": "queue",
    "JoinableQueue": "queue",
    "LifoQueue": "queue",
    "PriorityQueue": "queue",
    "BytesIO": "buffer",
}
"""Constructor -> what its product is called here."""

GUARD = "fluxguard"

_LOOKS_LIKE = {
    "executor": re.compile(r"executor|(^|_)pool$", re.IGNORECASE),
    "queue": re.compile(r"queue$|(^|_)q$", re.IGNORECASE),
    "accelerator": re.compile(r"accelerator$", re.IGNORECASE),
}


class Names:
    """Resolves what a file calls things."""

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self._aliases: dict[str, str] = {}
        self._made: dict[str, str] = {}
        for statement in statements:
            self._learn(statement)

    def _learn(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.asname:
                    self._aliases[alias.asname] = alias.name
        elif isinstance(statement, ast.ImportFrom):
            module = f"{'.' * statement.level}{statement.module or ''}"
            for alias in statement.names:
                # The guard is imported through a package of the checkout where that alone can be found.
                full = alias.name if alias.name == GUARD else f"{module}.{alias.name}"
                self._aliases[alias.asname or alias.name] = full
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Call):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            made = MADE_BY.get(last(statement.value.func))
            for target in targets:
                # The newest meaning of a name counts; one that is made anew by something else has none.
                if (name := last(target)) and (made or name in self._made):
                    self._made[name] = made or ""

    def full(self, node: ast.expr) -> str:
        """Return the dotted name of what is called, imports resolved; empty when it is not a plain name."""
        name = dotted(node)
        head, dot, rest = name.partition(".")
        return f"{self._aliases.get(head, head)}{dot}{rest}" if name else ""

    def shortened(self) -> Iterator[tuple[str, str]]:
        """Yield (name in this file, what it stands for) of all imports that may hide a known name."""
        yield from self._aliases.items()

    def is_a(self, kind: str, node: ast.expr) -> bool:
        """Whether an expression is an executor, a queue, an accelerator or a buffer, by its making or else its name."""
        name = last(node)
        if name in self._made:
            return self._made[name] == kind
        return kind in _LOOKS_LIKE and bool(_LOOKS_LIKE[kind].search(name))


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` of an attribute chain, or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def last(node: ast.AST) -> str:
    """Return the last identifier of an expression: `b` of `a.b`, of `a.b[0]` and of `a.b()`."""
    while isinstance(node, (ast.Subscript, ast.Call, ast.Await, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
