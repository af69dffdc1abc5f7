"""What is set up wrong for more than one rank, told by one call and what else its file holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fluxguard.patching import scan_kinds as kinds
from fluxguard.patching.scan_calls import bounded
from fluxguard.patching.scan_kinds import Kind
from fluxguard.patching.scan_names import Names, is_constant, last, word

SETS_EPOCH = ".set_epoch("

_GROUPS = frozenset({"init_process_group", "new_group", "init_distributed"})
_GROUP_OWNERS = ("torch.distributed", "dist", "deepspeed")
_EPOCHS = re.compile(r"\bfor\s+\w*epoch\w*\s+in\b|\bwhile\b.*epoch", re.IGNORECASE)
_NOT_TRAINED_ON = re.compile(r"val|test|eval|infer|predict", re.IGNORECASE)
_SEES_TO_IT = re.compile(r"lightning|set_epoch", re.IGNORECASE)
"""Whoever names these has the order of each epoch seen to."""
_RANKS = re.compile(r"\b(?:init_process_group|DistributedDataParallel|DDP|Accelerator|init_distributed)\(")
_SPLITS = re.compile(
    r"sampler\s*[=(]|accelerat|lightning|shard|split|num_replicas|\[\s*rank|webdataset|iterable|process_group=|parallel_group",
    re.IGNORECASE,
)
"""Who writes one of these has seen to it that each rank has its own part of the data, or has groups of ranks."""
_NO_TENSORS = re.compile(r"rank|BytesIO|schedul|scaler|config|meta|vocab|args\.bin", re.IGNORECASE)
"""Files of which each rank has its own, or that hold nothing of a card."""
_CARD = re.compile(r"cuda(?::(\d+))?")
_DEEPEST = 4


def flaws(call: ast.Call, names: Names, function: str, *, sets_epoch: bool) -> Iterator[Kind]:
    """Yield what is wrong with a call in itself; `sets_epoch` tells whether any file of the repository sets epochs."""
    name = names.full(call.func).rpartition(".")[2] or last(call.func)
    if name in _GROUPS or name == "Accelerator":
        yield from _group(call, name, names)
    elif name in ("DistributedDataParallel", "set_device"):
        yield from _devices(call, name, names)
    elif name == "DistributedSampler":
        yield from _sampler(call, names, function, sets_epoch=sets_epoch)
    elif name == "DataLoader":
        yield from _unsplit(call, names)
    elif names.full(call.func) == "torch.load" and _RANKS.search(names.text):
        yield from _placed(call)


def _passed_on(call: ast.Call) -> bool:
    """Whether a call takes keywords that are written elsewhere."""
    return any(keyword.arg is None for keyword in call.keywords)


def _placed(call: ast.Call) -> Iterator[Kind]:
    given = len(call.args) > 1 or word(call, "map_location") is not None or _passed_on(call)
    if not given and not _NO_TENSORS.search(ast.unparse(call)):
        yield kinds.PLACED


def _group(call: ast.Call, name: str, names: Names) -> Iterator[Kind]:
    if _passed_on(call) or bounded(call):
        return
    full = names.full(call.func)
    if name == "Accelerator":
        given = word(call, "kwargs_handlers")
        known = given is None or isinstance(given, ast.List)
        if full in ("Accelerator", "accelerate.Accelerator") and known and "InitProcessGroupKwargs" not in names.text:
            yield kinds.GROUP
    elif full.rpartition(".")[0] in _GROUP_OWNERS:
        yield kinds.GROUP


def _devices(call: ast.Call, name: str, names: Names) -> Iterator[Kind]:
    full = names.full(call.func)
    if name == "set_device":
        given = call.args[:1] if full == "torch.cuda.set_device" else []
    elif full.startswith("torch"):
        listed = word(call, "device_ids")
        listed = listed.body if isinstance(listed, ast.IfExp) else listed
        several = isinstance(listed, (ast.List, ast.Tuple)) and len(listed.elts) > 1
        given = [] if several else [*getattr(listed, "elts", ()), *filter(None, [word(call, "output_device")])]
    else:
        return
    found = {_judged(one, names) for one in given}
    for kind in (kinds.SAME_DEVICE, kinds.GLOBAL_DEVICE, kinds.DEVICE):
        if kind in found and not (name == "set_device" and kind is kinds.DEVICE):
            yield kind
            return


def _judged(node: ast.expr, names: Names, depth: int = 0) -> Kind | None:
    """Return what is wrong with a device, followed through the file as far as it can be told."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return _constant(node.value, names)
    if isinstance(node, ast.IfExp):
        return _worst(_judged(side, names, depth + 1) for side in (node.body, node.orelse))
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and last(node.func) == "format"):
        return kinds.DEVICE if "cuda" in ast.unparse(node) else None
    if isinstance(node, ast.Call) and names.full(node.func) == "torch.device":
        inner = _judged(node.args[0], names, depth + 1) if len(node.args) == 1 else None
        return inner if inner is kinds.SAME_DEVICE else kinds.DEVICE
    if isinstance(node, ast.Call) and last(node.func) == "int" and node.args:
        return _judged(node.args[0], names, depth + 1)
    if _is_global_rank(node, names):
        return kinds.GLOBAL_DEVICE
    if isinstance(node, ast.Attribute) and node.attr == "device":
        return kinds.DEVICE if names.is_a("accelerator", node.value) else _named(node, names, depth)
    return _named(node, names, depth) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _named(node: ast.expr, names: Names, depth: int) -> Kind | None:
    """Judge a name by everything that the file gives to it; it is wrong only when each of that is."""
    found = [_judged(value, names, depth + 1) for value in names.values(node)]
    return _worst(found) if found and None not in found else None


def _worst(found: Iterator[Kind | None] | list[Kind | None]) -> Kind | None:
    every = set(found)
    return next((kind for kind in (kinds.SAME_DEVICE, kinds.GLOBAL_DEVICE, kinds.DEVICE) if kind in every), None)


def _constant(value: object, names: Names) -> Kind | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return kinds.SAME_DEVICE if value >= 0 else None
    card = _CARD.fullmatch(value) if isinstance(value, str) else None
    if card is None:
        return kinds.DEVICE if value == "cpu" else None
    # Without a number it is the current card: the same one for all, unless each rank has chosen its own.
    return kinds.DEVICE if card[1] is None and "set_device(" in names.text else kinds.SAME_DEVICE


def _is_global_rank(node: ast.expr, names: Names) -> bool:
    if isinstance(node, ast.Subscript):
        return is_constant(node.slice, "RANK") and last(node.value) == "environ"
    if not isinstance(node, ast.Call):
        return False
    if last(node.func) in ("getenv", "get") and node.args and is_constant(node.args[0], "RANK"):
        return True
    return names.full(node.func) in ("torch.distributed.get_rank", "dist.get_rank") and not node.args


def _sampler(call: ast.Call, names: Names, function: str, *, sets_epoch: bool) -> Iterator[Kind]:
    full = names.full(call.func)
    shuffle = word(call, "shuffle") or (call.args[3] if len(call.args) > 3 else None)
    if not full.startswith("torch") or is_constant(shuffle, False) or _SEES_TO_IT.search(names.text):
        return
    if _NOT_TRAINED_ON.search(f"{names.given_to(call)} {function} {ast.unparse(call)}"):
        return
    if _EPOCHS.search(names.text) or not sets_epoch:
        yield kinds.SAMPLER


def _unsplit(call: ast.Call, names: Names) -> Iterator[Kind]:
    """Tell a loader that shuffles all of the data on every rank."""
    wrapped = re.search(r"\b(DistributedDataParallel|DDP)\(", names.text)
    if wrapped and is_constant(word(call, "shuffle"), True) and not _SPLITS.search(names.text):
        yield kinds.UNSPLIT
