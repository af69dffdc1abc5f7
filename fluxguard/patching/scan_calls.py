"""Which calls wait for somebody else, and what for: the knowledge behind the scan, one row per way to wait."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fluxguard.patching.scan_names import Names, last

OURS = "fluxguard."
NAMES_ONLY = frozenset({"during", "phase", "progress", "step", "train_begins"})
"""Calls of ours that tell where a training is and bound nothing."""


@dataclass(frozen=True)
class Kind:
    """One way to wait."""

    name: str
    why: str
    """What it waits for, or how it hangs."""
    severity: str
    """`critical`, `high`, `medium` or `low`."""
    across: bool = False
    """Whether every rank has to come."""
    reads: bool = False
    """Whether a guard of file reads bounds it."""


_RANKS = "until every rank has come; one that died or went another way leaves the others here"
FUTURE = Kind("future", "a thread or process that may never finish", "high")
EXECUTOR = Kind("executor", "all its tasks at the end; a stuck one blocks this and the interpreter's exit", "high")
LOADER = Kind("loader", "a batch from worker processes; torch's default is to wait for ever", "high")
IN_PROCESS = Kind("loader", "the reads of its dataset, made here without workers and unbounded", "low")
READ = Kind("cache read", "a file; a dead mount never answers, a torn file ends the run unnamed", "medium", reads=True)
WRITE = Kind("cache write", "nothing, but it writes in place: a kill leaves a torn file", "medium", reads=True)
BARRIER = Kind("barrier", _RANKS, "high", across=True)
COLLECTIVE = Kind("collective", _RANKS, "high", across=True)
SAVE = Kind("state", "a disk, and with DeepSpeed or FSDP every rank; it writes in place", "medium", across=True)
LOAD = Kind("state", "a disk, and with DeepSpeed or FSDP every rank", "medium", across=True)
QUEUE = Kind("queue", "an item that may never be put", "medium")
JOIN = Kind("join", "a thread, process or queue that may never end", "medium")
WAIT = Kind("wait", "an event or process that may never come or end", "medium")
PROCESS = Kind("process", "a program that may never end", "low")
NETWORK = Kind("network", "a server that may never answer", "medium")

_OPERATIONS = frozenset(
    (
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "recv", "reduce", "reduce_scatter"),
        *("reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
    )
)
_DISTRIBUTED = ("torch.distributed", "dist", "torch.distributed.distributed_c10d", "deepspeed.comm")
_OF_ACCELERATOR = frozenset({"gather", "gather_for_metrics", "pad_across_processes", "reduce"})
_OF_ACCELERATE = frozenset({"broadcast", "broadcast_object_list", "gather", "gather_object", "reduce"})
_REQUESTS = frozenset({"delete", "get", "head", "patch", "post", "put", "request"})
_RUNS = frozenset({"call", "check_call", "check_output", "run"})
_URLS = frozenset({"urlopen", "urlretrieve"})
_SAVES = frozenset({"save", "savez", "savez_compressed"})

_EMPTY = ("()", "(None", "(timeout=None", "(\n")
CANDIDATES = (
    *(f".{name}{call}" for name in ("get", "join", "wait") for call in _EMPTY),
    *(".get(True", ".get(block", ".gather", ".reduce(", ".pad_across_processes", ".wait_for_everyone", ".barrier"),
    *(".result", ".shutdown", ".communicate", "main_process_first", ".save_state", ".load_state", "fluxguard."),
    *("np.load", "numpy.load", "np.save", "numpy.save", "requests.", "subprocess.", ".urlopen", ".urlretrieve"),
    *("DataLoader", "as_completed", "ThreadPoolExecutor", "ProcessPoolExecutor"),
    *(f".{name}" for name in sorted(_OPERATIONS - {"gather", "reduce", "gather_object"})),
)
"""What a text with a wait holds one of; most lines and many files hold none and are not looked at more closely."""

_KNOWN_PREFIXES = (
    *(
        "torch.utils.data.",
        "torch.distributed.",
        "deepspeed.comm",
        "accelerate.utils.",
        "requests.",
        "subprocess.",
        "numpy.",
        "urllib.",
    ),
    "concurrent.futures.as_completed",
)


def may_hide(name: str) -> bool:
    """Whether an imported name belongs to a library whose waits are known, so that its alias is looked for too."""
    return name.startswith(_KNOWN_PREFIXES)


def word(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def bounded(call: ast.Call) -> bool:
    """Whether a call has a `timeout=` that is not None."""
    value = word(call, "timeout")
    return value is not None and not (isinstance(value, ast.Constant) and value.value is None)


def bare(call: ast.Call) -> bool:
    """Whether a call has no argument but perhaps `timeout=None`."""
    none = all(isinstance(value, ast.Constant) and value.value is None for value in call.args)
    return none and all(keyword.arg == "timeout" for keyword in call.keywords) and not bounded(call)


def kind_of(call: ast.Call, names: Names) -> Kind | None:
    """Return how a call waits without a limit of its own, or None."""
    if bounded(call) and last(call.func) != "DataLoader":
        return None
    full = names.full(call.func)
    if full.startswith(OURS):
        return None
    method = _method(call, call.func, names) if isinstance(call.func, ast.Attribute) else None
    return method or _named(call, full, names)


def _method(call: ast.Call, func: ast.Attribute, names: Names) -> Kind | None:
    finder = _METHODS.get(func.attr)
    return finder(call, func.value, names) if finder else None


def _bare(kind: Kind) -> Callable[[ast.Call, ast.expr, Names], Kind | None]:
    return lambda call, owner, names: kind if bare(call) else None


def _of(what: str, kind: Kind) -> Callable[[ast.Call, ast.expr, Names], Kind | None]:
    return lambda call, owner, names: kind if names.is_a(what, owner) else None


def _shutdown(call: ast.Call, owner: ast.expr, names: Names) -> Kind | None:
    wait = word(call, "wait") or (call.args[0] if call.args else None)
    waits = not (isinstance(wait, ast.Constant) and wait.value is False)
    return EXECUTOR if waits and names.is_a("executor", owner) else None


def _get(call: ast.Call, owner: ast.expr, names: Names) -> Kind | None:
    block = word(call, "block") or (call.args[0] if call.args else None)
    blocks = block is None or (isinstance(block, ast.Constant) and block.value is True)
    return QUEUE if len(call.args) < 2 and blocks and names.is_a("queue", owner) else None


def _wait(call: ast.Call, owner: ast.expr, names: Names) -> Kind | None:
    on_the_card = "cuda" in last(owner).lower() or "stream" in last(owner).lower()
    return WAIT if bare(call) and not on_the_card else None


_METHODS: dict[str, Callable[[ast.Call, ast.expr, Names], Kind | None]] = {
    "result": _bare(FUTURE),
    "join": _bare(JOIN),
    "wait": _wait,
    "get": _get,
    "shutdown": _shutdown,
    "communicate": lambda call, owner, names: WAIT if len(call.args) < 2 else None,
    "wait_for_everyone": lambda call, owner, names: BARRIER,
    "main_process_first": lambda call, owner, names: BARRIER,
    "local_main_process_first": lambda call, owner, names: BARRIER,
    "save_state": _of("accelerator", SAVE),
    "load_state": _of("accelerator", LOAD),
    **dict.fromkeys(_OF_ACCELERATOR, _of("accelerator", COLLECTIVE)),
}


def _named(call: ast.Call, full: str, names: Names) -> Kind | None:
    owner, _, name = full.rpartition(".")
    if name == "DataLoader" and (owner in ("", "data") or owner.startswith("torch")):
        return _loader(call)
    if owner in _DISTRIBUTED:
        return BARRIER if name == "barrier" else COLLECTIVE if name in _OPERATIONS else None
    if owner.startswith("accelerate.utils") and name in _OF_ACCELERATE:
        return COLLECTIVE
    if owner in ("np", "numpy"):
        return READ if name == "load" else WRITE if name in _SAVES and not _into_memory(call, names) else None
    if owner == "concurrent.futures" and name == "as_completed":
        return FUTURE
    if owner == "requests" and name in _REQUESTS:
        return NETWORK
    if owner == "subprocess" and name in _RUNS:
        return PROCESS
    return NETWORK if owner == "urllib.request" and name in _URLS else None


def _into_memory(call: ast.Call, names: Names) -> bool:
    return bool(call.args) and names.is_a("buffer", call.args[0])


def _loader(call: ast.Call) -> Kind | None:
    timeout, workers = word(call, "timeout"), word(call, "num_workers")
    if bounded(call) and not (isinstance(timeout, ast.Constant) and timeout.value == 0):
        return None
    passed_on = any(keyword.arg is None for keyword in call.keywords)
    without = (workers is None and not passed_on) or (isinstance(workers, ast.Constant) and workers.value == 0)
    return IN_PROCESS if without else LOADER
