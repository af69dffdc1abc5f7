"""Which code runs on some ranks only: conditions on the rank, and the code behind an early way out."""

from __future__ import annotations

import ast
import re

from fluxguard.patching.scan_names import last

_RANK = re.compile(r"(^|_)(rank|process_index|process_id|proc_id)$", re.IGNORECASE)
_GET_RANK = re.compile(r"^(get_)?(global_|local_|world_|node_)?(rank|process_index|ordinal)$", re.IGNORECASE)
_MAIN = re.compile(r"(^|_)is_((local|global|world)_)?(main|master|first)(_process|_rank|_worker)?$|rank_?(zero|0)$")
_LAST = re.compile(r"(^|_)is_((local|global)_)?last(_process|_rank)$")
_ON_ONE = re.compile(r"^(on_(local_)?main_process|on_last_process|rank_zero_only|main_process_only|master_only)$")
_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK")
_LEAVES = ("sys.exit", "exit", "quit", "os._exit")


def depends(test: ast.expr) -> bool:
    """Whether a condition may hold on some ranks and not on others.

    Not: tests that come out the same everywhere, such as `rank == -1`, `rank is not None` or `world_size > 1`.
    """
    if isinstance(test, ast.BoolOp):
        return any(map(depends, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return depends(test.operand) or _is_rank(test.operand)
    if isinstance(test, ast.Compare):
        return _compared(test)
    name = last(test)
    return bool(_MAIN.search(name) or _LAST.search(name))


def _compared(test: ast.Compare) -> bool:
    sides = [test.left, *test.comparators]
    if any(depends(side) for side in sides if isinstance(side, (ast.Name, ast.Attribute, ast.Call))):
        return not any(isinstance(op, (ast.Is, ast.IsNot)) and _is_none(test.comparators[0]) for op in test.ops)
    if not any(_is_rank(part) for side in sides for part in ast.walk(side) if isinstance(part, ast.expr)):
        return False
    pairs = zip(test.ops, test.comparators, strict=True)
    return not all(_same_everywhere(op, _number(other), _is_none(other)) for op, other in pairs)


def _same_everywhere(op: ast.cmpop, number: int | None, is_none: bool) -> bool:
    if is_none or (number is not None and number < 0):
        return True  # whether there are ranks at all
    return isinstance(op, ast.GtE) and number == 0


def _is_rank(node: ast.expr) -> bool:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return bool(_RANK.search(last(node)))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in _VARIABLES
    if isinstance(node, ast.Call):
        named = node.args[:1] and isinstance(node.args[0], ast.Constant) and node.args[0].value in _VARIABLES
        inner = last(node.func) == "int" and bool(node.args) and _is_rank(node.args[0])
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
