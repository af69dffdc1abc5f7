"""Which calls wait for somebody else, and what for: the knowledge behind the scan, one row per way to wait."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fluxguard.patching import scan_kinds as kinds
from fluxguard.patching.scan_kinds import Kind
from fluxguard.patching.scan_names import Names, last, word

OURS = "fluxguard."
NAMES_ONLY = frozenset({"during", "phase", "progress", "step", "train_begins"})
"""Calls of ours that tell where a training is and bound nothing."""
NOTES_ONLY = frozenset(f"fluxguard.distributed.{name}" for name in ("collective", "on_main", "together"))
"""Regions of ours in which something is noted or kept to one rank; what is called in them is not bounded."""

_ACROSS = frozenset(
    (
        *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast"),
        *("gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
    )
)
_OBJECTS = frozenset({"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"})
_BARRIERS = frozenset({"barrier", "monitored_barrier"})
_MESSAGES = frozenset({"recv", "recv_object_list", "send", "send_object_list"})
_DISTRIBUTED = ("torch.distributed", "dist", "torch.distributed.distributed_c10d", "deepspeed.comm")
_CHECKPOINT = "torch.distributed.checkpoint"
_OF_ACCELERATOR = frozenset({"gather", "gather_for_metrics", "pad_across_processes", "reduce"})
_OF_ACCELERATE = frozenset({"broadcast", "gather", "reduce"})
_OF_TORCHEVAL = frozenset({"get_synced_metric", "sync_and_compute", "sync_and_compute_collection"})
_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel"})
_ALL_OF_OURS = frozenset(
    (
        *("barrier", "compute", "decide", "load_or_init", "load_state", "mean", "newest_state", "on_main"),
        *("preflight", "save_state", "setup", "teardown", "together", "wrap"),
    )
)
_REQUESTS = frozenset({"delete", "get", "head", "patch", "post", "put", "request"})
_RUNS = frozenset({"call", "check_call", "check_output", "run"})
_URLS = frozenset({"urlopen", "urlretrieve"})
_SAVES = frozenset({"save", "savez", "savez_compressed"})

_EMPTY = ("()", "(None", "(timeout=None", "(\n")
_WORDS = (
    *(f".{name}{call}" for name in ("get", "join", "wait") for call in _EMPTY),
    *(".compute(", ".sync("),
    *(".get(True", ".get(block", ".gather", ".reduce(", ".pad_across_processes", ".wait_for_everyone", ".barrier"),
    *(".result", ".shutdown", ".communicate", "main_process_first", ".save_state", ".load_state", "fluxguard."),
    *("np.load", "numpy.load", "np.save", "numpy.save", "requests.", "subprocess.", ".urlopen", ".urlretrieve"),
    *("DataLoader", "as_completed", "ThreadPoolExecutor", "ProcessPoolExecutor", ".monitored_barrier"),
    *("init_process_group", "init_distributed", ".new_group", "Accelerator(", "DistributedDataParallel", "DDP("),
    *("DistributedSampler", "torch.load", "set_device", "accelerator.prepare", ".get_state_dict", "_object_list"),
    *(f".{name}" for name in sorted(_ACROSS - {"reduce"}) + sorted(_MESSAGES)),
)
CANDIDATES = tuple(word for word in _WORDS if not any(other != word and other in word for other in _WORDS))
"""What a text with a finding holds one of; most lines and many files hold none and are not looked at more closely."""

_KNOWN_PREFIXES = (
    *("torch.utils.data.", "torch.distributed.", "torch.nn.parallel", "deepspeed.comm", "accelerate.utils."),
    *("requests.", "subprocess.", "numpy.", "urllib.", "torcheval.metrics.toolkit", "fluxguard.distributed"),
    "concurrent.futures.as_completed",
)


def may_hide(name: str) -> bool:
    """Whether an imported name belongs to a library whose waits are known, so that its alias is looked for too."""
    return name.startswith(_KNOWN_PREFIXES)


def bounded(call: ast.Call) -> bool:
    """Whether a call has a `timeout=` that is not None."""
    value = word(call, "timeout")
    return value is not None and not (isinstance(value, ast.Constant) and value.value is None)


def bare(call: ast.Call) -> bool:
    """Whether a call has no argument but perhaps `timeout=None`."""
    none = all(isinstance(value, ast.Constant) and value.value is None for value in call.args)
    return none and all(keyword.arg == "timeout" for keyword in call.keywords) and not bounded(call)


def kind_of(call: ast.Call, names: Names) -> Kind | None:
    """Return how a call waits, or None; `bounded` tells whether it has a limit of its own."""
    full = names.full(call.func)
    if full.startswith(OURS):
        return None
    method = _method(call, call.func, names) if isinstance(call.func, ast.Attribute) else None
    return method or _named(call, full, names)


def ours(call: ast.Call, names: Names) -> Kind | None:
    """Return what a call of ours gathers every rank for, or None; it is bounded, but all have to come."""
    full = names.full(call.func)
    if full.startswith(f"{OURS}distributed."):
        return kinds.BARRIER if last(call.func) in _ALL_OF_OURS else None
    return kinds.BARRIER if full in (f"{OURS}barrier", f"{OURS}collective") else None


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
    return kinds.EXECUTOR if waits and names.is_a("executor", owner) else None


def _get(call: ast.Call, owner: ast.expr, names: Names) -> Kind | None:
    block = word(call, "block") or (call.args[0] if call.args else None)
    blocks = block is None or (isinstance(block, ast.Constant) and block.value is True)
    return kinds.QUEUE if len(call.args) < 2 and blocks and names.is_a("queue", owner) else None


def _wait(call: ast.Call, owner: ast.expr, names: Names) -> Kind | None:
    on_the_card = "cuda" in last(owner).lower() or "stream" in last(owner).lower()
    return kinds.WAIT if bare(call) and not on_the_card else None


_METHODS: dict[str, Callable[[ast.Call, ast.expr, Names], Kind | None]] = {
    "result": _bare(kinds.FUTURE),
    "join": _bare(kinds.JOIN),
    "wait": _wait,
    "get": _get,
    "shutdown": _shutdown,
    "communicate": lambda call, owner, names: kinds.WAIT if len(call.args) < 2 else None,
    "wait_for_everyone": lambda call, owner, names: kinds.BARRIER,
    "main_process_first": lambda call, owner, names: kinds.BARRIER,
    "local_main_process_first": lambda call, owner, names: kinds.BARRIER,
    "save_state": _of("accelerator", kinds.SAVE),
    "load_state": _of("accelerator", kinds.LOAD),
    "get_state_dict": _of("accelerator", kinds.GATHERED),
    "prepare": _of("accelerator", kinds.WRAPPING),
    "compute": _of("metric", kinds.METRIC),
    "sync": _of("metric", kinds.METRIC),
    **dict.fromkeys(_OF_ACCELERATOR, _of("accelerator", kinds.COLLECTIVE)),
}


def _named(call: ast.Call, full: str, names: Names) -> Kind | None:
    owner, _, name = full.rpartition(".")
    if name == "DataLoader" and (owner in ("", "data") or owner.startswith("torch")):
        return _loader(call)
    if owner in _DISTRIBUTED or owner.startswith(("accelerate.utils", "torcheval", _CHECKPOINT)):
        return _gathers(owner, name)
    if name in _WRAPPERS and owner.startswith("torch"):
        return kinds.WRAPPING
    if owner in ("np", "numpy"):
        return (
            kinds.READ if name == "load" else kinds.WRITE if name in _SAVES and not _into_memory(call, names) else None
        )
    if owner == "concurrent.futures" and name == "as_completed":
        return kinds.FUTURE
    if owner == "requests" and name in _REQUESTS:
        return kinds.NETWORK
    if owner == "subprocess" and name in _RUNS:
        return kinds.PROCESS
    return kinds.NETWORK if owner == "urllib.request" and name in _URLS else None


def _gathers(owner: str, name: str) -> Kind | None:
    if owner.startswith("torcheval"):
        return kinds.COLLECTIVE if name in _OF_TORCHEVAL else None
    if owner.startswith(_CHECKPOINT):
        return kinds.SAVE if name in ("save", "async_save") else kinds.LOAD if name == "load" else None
    if name in _OBJECTS:
        return kinds.OBJECTS
    if owner.startswith("accelerate"):
        return kinds.COLLECTIVE if name in _OF_ACCELERATE else None
    if name == "new_group":
        return kinds.BOUNDED_GROUP
    if name in _BARRIERS:
        return kinds.BARRIER
    return kinds.COLLECTIVE if name in _ACROSS else kinds.MESSAGE if name in _MESSAGES else None


def _into_memory(call: ast.Call, names: Names) -> bool:
    return bool(call.args) and names.is_a("buffer", call.args[0])


def _loader(call: ast.Call) -> Kind | None:
    timeout, workers = word(call, "timeout"), word(call, "num_workers")
    if bounded(call) and not (isinstance(timeout, ast.Constant) and timeout.value == 0):
        return None
    passed_on = any(keyword.arg is None for keyword in call.keywords)
    without = (workers is None and not passed_on) or (isinstance(workers, ast.Constant) and workers.value == 0)
    return kinds.IN_PROCESS if without else kinds.LOADER
