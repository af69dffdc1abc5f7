"""Which code runs on some ranks only: conditions on the rank, and the code behind an early way out."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence

from fluxguard.patching.scan_names import is_constant, last

_RANK = re.compile(r"(^|_)(rank|process_index|process_id|proc_id)$", re.IGNORECASE)
_GET_RANK = re.compile(r"^(get_)?(global_|local_|world_|node_)?(rank|process_index|ordinal)$", re.IGNORECASE)
_MAIN = re.compile(
    r"(^|_)is_((local|global|world)_)?(main|master|first|zero|primary|root)(_process|_rank|_worker|_ordinal)?$"
    r"|rank_?(zero|0)$|^(main|master)_process$"
)
_LAST = re.compile(r"(^|_)is_((local|global)_)?last(_process|_rank)$")
_ON_ONE = re.compile(r"^(on_(local_)?main_process|on_last_process|rank_zero_only|main_process_only|master_only)$")
_WORLD = re.compile(r"(^|_)world$", re.IGNORECASE)
_MAKES_WORLD = ("setup", "current")
_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK")
_SIZE = re.compile(r"(^|_)(world_size|num_processes|n_?gpus?|ngpu)$", re.IGNORECASE)
_NAMES = 4096
_CONDITIONS = (ast.Attribute, ast.BoolOp, ast.Call, ast.Compare, ast.Name, ast.UnaryOp)
_LEAVES = ("sys.exit", "exit", "quit", "os._exit")
_WORDS = (
    *(
        "rank",
        "RANK",
        "master",
        "ordinal",
        "process_index",
        "process_id",
        "proc_id",
        "PROCID",
        "main_process",
        "on_main",
        ".main",
    ),
    *(f"is_{word}" for word in ("main", "first", "last", "zero", "primary", "root", "local", "global", "world")),
)
"""A text without any of these holds no condition on the rank."""


class Conditions:
    """Tells conditions on the rank of one file, those that it keeps in variables or asks a small function for too."""

    def __init__(self, statements: Sequence[ast.stmt] = (), text: str = "") -> None:
        self._known: dict[str, ast.expr] = {}
        self._ranks: set[str] = set()
        self._worlds: set[str] = set()
        self.any = any(word in text for word in _WORDS)
        """Whether the file may hold any at all."""
        if self.any:
            other = {name for statement in statements for name in self._learn(statement)}
            self._known = {name: value for name, value in self._known.items() if name not in other}
            self._ranks -= other
            self._learn_flags(statements)

    def _learn_flags(self, statements: Sequence[ast.stmt]) -> None:
        """Learn which variables are set under a condition on the rank, and so differ between ranks, told to nobody."""
        flags = [one for one in statements if isinstance(one, ast.Assign) and is_constant(one.value, True)]
        set_by = {
            name: statement.test
            for statement in statements
            if isinstance(statement, ast.If)
            for flag in flags
            if statement.lineno < flag.lineno <= (statement.body[-1].end_lineno or 0) and self.depends(statement.test)
            for target in flag.targets
            if (name := last(target))
        }
        if set_by:
            others = {name for statement in statements for name in _uses_otherwise(statement)}
            self._known.update((name, test) for name, test in set_by.items() if name not in others)

    def _learn(self, statement: ast.stmt) -> list[str]:
        """Learn from one statement; return the names that it gives another meaning."""
        if isinstance(statement, ast.FunctionDef):
            end = statement.body[-1]
            if (
                len(statement.body) <= 2
                and isinstance(end, ast.Return)
                and end.value
                and self.depends(end.value)
                and not _says_so(statement.name)
            ):
                self._known[statement.name] = end.value
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = (*statement.args.args, *statement.args.kwonlyargs)
            self._worlds.update(one.arg for one in arguments if one.annotation and last(one.annotation) == "World")
        if isinstance(statement, ast.With):
            for item in statement.items:
                if item.optional_vars is not None and last(item.context_expr) == "on_main":
                    self._known[last(item.optional_vars)] = ast.Name("is_main")
                elif item.optional_vars is not None and _makes_world(item.context_expr):
                    self._worlds.add(last(item.optional_vars))
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            return []
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [name for target in targets if (name := last(target))]
        if self._is_rank(statement.value):
            self._ranks.update(names)
            return []
        if _makes_world(statement.value):
            self._worlds.update(names)
        if not isinstance(statement.value, _CONDITIONS) or not self.depends(statement.value):
            return names
        self._known.update((name, statement.value) for name in names if not _says_so(name))
        return []

    def depends(self, test: ast.expr) -> bool:
        """Whether a condition may hold on some ranks and not on others.

        Not: tests that come out the same everywhere, such as `rank == -1`, `rank is not None` or `world_size > 1`.
        """
        if isinstance(test, ast.BoolOp):
            alone = isinstance(test.op, ast.And) and any(map(_is_alone, test.values))
            return not alone and any(map(self.depends, test.values))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.depends(test.operand)
        if isinstance(test, ast.Compare):
            return self._compared(test)
        if isinstance(test, ast.Call) and last(test.func) == "bool" and test.args:
            return self.depends(test.args[0])
        return self._says_so(test) or self._is_rank(test)

    def _says_so(self, test: ast.expr) -> bool:
        name = last(test)
        return name in self._known or _says_so(name) or self._is_main(test)

    def _is_main(self, test: ast.expr) -> bool:
        """Whether an expression is `world.main` of ours, also where the world is handed on or kept in an attribute."""
        if not isinstance(test, ast.Attribute) or test.attr != "main":
            return False
        name = last(test.value)
        return _makes_world(test.value) or name in self._worlds or bool(_WORLD.search(name))

    def _compared(self, test: ast.Compare) -> bool:
        sides = [test.left, *test.comparators]
        if any(self._says_so(side) for side in sides if isinstance(side, (ast.Name, ast.Attribute, ast.Call))):
            return not any(isinstance(op, (ast.Is, ast.IsNot)) and _is_none(test.comparators[0]) for op in test.ops)
        if not any(self._is_rank(part) for side in sides for part in ast.walk(side) if isinstance(part, ast.expr)):
            return False
        pairs = zip(test.ops, test.comparators, strict=True)
        return not all(_same_everywhere(op, other) for op, other in pairs)

    def _is_rank(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Name, ast.Attribute)):
            return last(node) in self._ranks or _names_rank(last(node))
        return _asks_for_rank(node)

    def on_main(self, test: ast.expr) -> bool:
        """Whether a condition on the rank is the one that holds on the main rank."""
        if isinstance(test, ast.BoolOp):
            return self.on_main(next((part for part in test.values if self.depends(part)), test.values[0]))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return not self.on_main(test.operand)
        if isinstance(test, ast.Compare):
            return not isinstance(test.ops[0], (ast.NotEq, ast.NotIn, ast.Gt))
        known = self._known.get(last(test))
        if known is not None:
            return self.on_main(known)
        return not self._is_rank(test)  # `if rank:` holds on all but the main one


@functools.lru_cache(maxsize=_NAMES)
def _names_rank(name: str) -> bool:
    return bool(_RANK.search(name))


@functools.lru_cache(maxsize=_NAMES)
def _says_so(name: str) -> bool:
    """Whether a name is a condition on the rank by itself."""
    return bool(_MAIN.search(name) or _LAST.search(name))


def _is_alone(test: ast.expr) -> bool:
    """Whether a condition says that there is one rank only."""
    if not isinstance(test, ast.Compare) or not _SIZE.search(last(test.left)):
        return False
    return (isinstance(test.ops[0], ast.Eq) and _number(test.comparators[0]) == 1) or (
        isinstance(test.ops[0], ast.LtE) and _number(test.comparators[0]) == 1
    )


def _same_everywhere(op: ast.cmpop, other: ast.expr) -> bool:
    """Whether a rank compares with something alike on every rank: there are ranks at all, or it is a device's name."""
    number = _number(other)
    if _is_none(other) or (isinstance(other, ast.Constant) and isinstance(other.value, str)):
        return True
    return number is not None and (number < 0 or (isinstance(op, ast.GtE) and number == 0))


def _uses_otherwise(statement: ast.stmt) -> Iterator[str]:
    """Yield names that a statement sets to something else than True or False, or hands to a call or to its caller."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        if not isinstance(statement.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from map(last, targets)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from (argument.arg for argument in ast.walk(statement.args) if isinstance(argument, ast.arg))
    for node in ast.walk(statement):
        if isinstance(node, (ast.Call, ast.Return, ast.Global, ast.Nonlocal, ast.List, ast.Dict)):
            yield from (last(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute)))


def _makes_world(node: ast.expr) -> bool:
    """Whether an expression is `distributed.setup()` or `distributed.current()`."""
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr in _MAKES_WORLD and last(func.value) == "distributed"


def _asks_for_rank(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in _VARIABLES
    if isinstance(node, ast.Call):
        named = node.args[:1] and isinstance(node.args[0], ast.Constant) and node.args[0].value in _VARIABLES
        inner = last(node.func) == "int" and bool(node.args) and _asks_for_rank(node.args[0])
        return bool(_GET_RANK.search(last(node.func)) or named or inner)
    return False


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def on_one(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator lets a function run on one rank only."""
    return any(_ON_ONE.search(last(decorator)) for decorator in function.decorator_list)


def way_out(body: list[ast.stmt]) -> str:
    """Return how a block leaves at its end: `function`, `loop`, or an empty text."""
    end = body[-1]
    if isinstance(end, ast.Return):
        return "function"
    if isinstance(end, (ast.Continue, ast.Break)):
        return "loop"
    if isinstance(end, ast.Expr) and isinstance(end.value, ast.Call):
        return "function" if ast.unparse(end.value.func) in _LEAVES else ""
    return ""
