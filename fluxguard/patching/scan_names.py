"""What names mean in one file: imports, and what was made by a constructor whose waits are known."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

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

_METRICS = "torchmetrics"
_LOOKS_LIKE = {
    "executor": re.compile(r"executor|(^|_)pool$", re.IGNORECASE),
    "queue": re.compile(r"queue$|(^|_)q$", re.IGNORECASE),
    "accelerator": re.compile(r"accelerator$", re.IGNORECASE),
    "metric": re.compile(r"(^|_)(fid|kid|mifid|lpips|inception_score|clip_score)(_metric|_score)?$", re.IGNORECASE),
}


class Names:
    """Resolves what a file calls things."""

    def __init__(self, statements: Iterable[ast.stmt], text: str = "") -> None:
        self.text = text
        self._aliases: dict[str, str] = {}
        self._made: dict[str, str] = {}
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        every = list(statements)
        for statement in every:
            self._learn(statement)
        if _METRICS in text:
            self._learn_metrics(every)

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
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            made = MADE_BY.get(last(statement.value.func)) if isinstance(statement.value, ast.Call) else None
            for target in _targets(statement):
                name = last(target)
                self._values[name].append(statement.value)
                # The newest meaning of a name counts; one that is made anew by something else has none.
                if name and (made or (name in self._made and isinstance(statement.value, ast.Call))):
                    self._made[name] = made or ""

    def _learn_metrics(self, statements: Sequence[ast.stmt]) -> None:
        """Learn which names stand for metrics of torchmetrics, or hold some."""
        for name, values in self._values.items():
            if any(map(self._is_metric, values)):
                self._made[name] = "metric"
        for statement in statements:
            if isinstance(statement, (ast.For, ast.AsyncFor)) and self._holds_metric(statement.iter):
                self._made.update(
                    (node.id, "metric") for node in ast.walk(statement.target) if isinstance(node, ast.Name)
                )
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for argument in (*statement.args.args, *statement.args.kwonlyargs):
                    if argument.annotation is not None and self._of_torchmetrics(argument.annotation):
                        self._made[argument.arg] = "metric"

    def _is_metric(self, value: ast.expr) -> bool:
        """Whether an expression makes a metric that gathers from all ranks, or a collection of such."""
        calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and self._of_torchmetrics(node.func)]
        return any(not _is_local(call) for call in calls)

    def _of_torchmetrics(self, node: ast.expr) -> bool:
        owner, _, name = self.full(node).rpartition(".")
        return owner.split(".")[0] == _METRICS and name[:1].isupper()

    def _holds_metric(self, node: ast.expr) -> bool:
        return any(
            isinstance(part, ast.Name | ast.Attribute) and self._made.get(last(part)) == "metric"
            for part in ast.walk(node)
        )

    def full(self, node: ast.expr) -> str:
        """Return the dotted name of what is called, imports resolved; empty when it is not a plain name."""
        name = dotted(node)
        head, dot, rest = name.partition(".")
        return f"{self._aliases.get(head, head)}{dot}{rest}" if name else ""

    def shortened(self) -> Iterator[tuple[str, str]]:
        """Yield (name in this file, what it stands for) of all imports that may hide a known name."""
        yield from self._aliases.items()

    def values(self, node: ast.expr) -> Sequence[ast.expr]:
        """Return what the file gives to a name, in any place of it."""
        return self._values.get(last(node), ())

    def given_to(self, call: ast.Call) -> str:
        """Return the name that what a call makes is given to, or an empty text."""
        for name, values in self._values.items():
            if any(value is call or any(node is call for node in ast.walk(value)) for value in values):
                return name
        return ""

    def is_a(self, kind: str, node: ast.expr) -> bool:
        """Whether an expression is an executor, a queue, an accelerator and so on, by its making or else its name."""
        name = last(node)
        if name in self._made:
            return self._made[name] == kind
        if kind == "metric" and name in self._values:
            return False  # made here, and not by torchmetrics
        return kind in _LOOKS_LIKE and bool(_LOOKS_LIKE[kind].search(name))


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements, at any depth."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody"):
            waiting.extend(getattr(node, name, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            waiting.extend(part.body)


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


def word(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    """Whether an expression is just this constant."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_local(call: ast.Call) -> bool:
    """Whether a metric is told to keep to its own rank."""
    return is_constant(word(call, "sync_on_compute"), False)
