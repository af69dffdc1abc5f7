"""The one place that knows how a torchmetrics metric keeps its states, its cached result and its own sync.

A metric may hold others (a collection, a wrapper, an expression of metrics); each is a part. torchmetrics gathers the
states of one part, computes it, and goes on to the next; here all parts are gathered first, so that what a rank then
computes, and fails in, keeps no other rank waiting in a collective.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fluxguard.distributed.measures.holdings import Held, Plan
from fluxguard.errors import InputError

_JOINED = "dim_zero_cat"
_DIGEST = 6


def parts_of(metric: Any, what: str) -> list[Any]:
    """Return all metrics that `metric` is made of, itself first; the same on every rank that holds the same.

    Raises InputError when it is neither a metric nor a collection of them.
    """
    torchmetrics = sys.modules.get("torchmetrics")
    kinds: Any = None if torchmetrics is None else (torchmetrics.Metric, torchmetrics.MetricCollection)
    if kinds is None or not isinstance(metric, kinds):
        more = ": give the one that it tracks now, tracker[-1]" if type(metric).__name__ == "MetricTracker" else ""
        raise InputError(what, f"is no torchmetrics Metric or MetricCollection but a {type(metric).__name__}{more}")
    return [part for part in metric.modules() if isinstance(part, kinds[0])]


def group_of(parts: Sequence[Any], what: str) -> Any:
    """Return the process group that the parts are synced in; None for the default one.

    Raises InputError when it is not the same for all.
    """
    groups = {id(part.process_group): part.process_group for part in parts if part._reductions}
    if len(groups) > 1:
        raise InputError(what, "its metrics have different values of process_group: compute them one by one")
    return next(iter(groups.values()), None)


def held(parts: Sequence[Any], carried: set[str], ranks: Sequence[int] = ()) -> Held:
    """Return what this rank holds of a metric.

    `carried` are the types of device that its process group serves, `ranks` those in it when it is not the default one.
    """
    states = [(part, name, getattr(part, name)) for part in parts for name in part._reductions]
    return Held.of(
        "; ".join([*(_words(part) for part in parts), *([f"process_group of ranks {list(ranks)}"] if ranks else [])]),
        updates=[part.update_count for part in parts] or [0],
        lists=[_item(value) for part, name, value in states if _is_joined(part, name, value)],
        cached=tuple(part._computed is not None for part in parts),
        stranded=_stranded(states, carried),
    )


def _words(part: Any) -> str:
    states = [f"{name} {_kind(part, name, getattr(part, name))}" for name in part._reductions]
    return ", ".join([type(part).__name__, *states, *([] if part._to_sync else ["sync_on_compute=False"])])


def _kind(part: Any, name: str, value: Any) -> str:
    reduction = part._reductions[name]
    named = getattr(reduction, "__name__", "not reduced")
    if not isinstance(value, list):
        return f"{_tensor(value)} {named}"
    if _is_joined(part, name, value):
        return f"list {named}"
    # Their sizes may differ, as those of the boxes in images do: the gathering sees to that.
    kinds = ",".join(f"{_type(item)} {getattr(item, 'ndim', '')}" for item in value)
    items = hashlib.blake2b(kinds.encode(), digest_size=_DIGEST).hexdigest()
    return f"list of {len(value)} {named} {items}"


def _tensor(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return _type(value) if shape is None else f"{_type(value)} {'x'.join(map(str, shape)) or 'scalar'}"


def _type(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else type(value).__name__


def _is_joined(part: Any, name: str, value: Any) -> bool:
    return isinstance(value, list) and getattr(part._reductions[name], "__name__", "") == _JOINED


def _item(items: list[Any]) -> str:
    """Return the type and shape, but for the first dimension, of what a list holds; empty when it holds nothing."""
    if not items:
        return ""
    first = items[0]
    return ".".join([str(first.dtype).removeprefix("torch."), *map(str, first.shape[1:])])


def _stranded(states: Sequence[tuple[Any, str, Any]], carried: set[str]) -> str:
    left: dict[str, list[str]] = {}
    for part, name, value in states:
        if not part._to_sync:
            continue
        tensors = value if isinstance(value, list) else [value]
        for device in {one.device.type for one in tensors if hasattr(one, "device")} or {part.device.type}:
            if device not in carried:
                left.setdefault(device, []).append(name)
    return " and ".join(
        f"{names[0]}{f' and {len(names) - 1} more states' if len(names) > 1 else ''} lie on {device}"
        for device, names in sorted(left.items())
    )


@contextlib.contextmanager
def gathered(parts: Sequence[Any], plan: Plan, gather: Callable[..., list[Any]]) -> Iterator[Callable[[], None]]:
    """Yield what gathers the states of all parts that `plan` wants computed again; afterwards all is as it was.

    What it yields is called once, and calls `gather` for each state, in the same order on every rank.
    """
    before = [{name: getattr(part, name) for name in part._reductions} for part in parts]
    synced = [(part._to_sync, part._should_unsync) for part in parts]

    def sync_all() -> None:
        lists = iter(plan.lists)
        for part, again, (wanted, _) in zip(parts, plan.again, synced, strict=True):
            mine = [(name, next(lists)) for name in part._reductions if _is_joined(part, name, getattr(part, name))]
            if not again:
                continue
            part._computed = None
            if wanted and part._reductions:
                _join_lists(part, mine)
                part.sync(dist_sync_fn=part.dist_sync_fn or gather)
            # It may be computed more than once, by the metrics that hold it, and each time from what was gathered.
            part._to_sync = part._should_unsync = False

    try:
        yield sync_all
    finally:
        for part, states, (wanted, unsyncs) in zip(parts, before, synced, strict=True):
            part._to_sync, part._should_unsync = wanted, unsyncs
            if part._is_synced or part._cache is not None:
                part._cache, part._is_synced = None, False
            for name, value in states.items():
                setattr(part, name, value)


def _join_lists(part: Any, lists: Sequence[tuple[str, str]]) -> None:
    """Make one tensor of each list, with as many dimensions on a rank that has one item, or none, as on the others.

    torchmetrics leaves a single item as it is and stands a tensor of its own kind in for none; gathered with what
    other ranks have, either is a wrong value or a wait without end.
    """
    import torch
    from torchmetrics.utilities.data import dim_zero_cat

    for name, kind in lists:
        items = getattr(part, name)
        if items:
            setattr(part, name, [dim_zero_cat(items)])
        elif kind:
            dtype, *rest = kind.split(".")
            empty = torch.empty((0, *map(int, rest)), dtype=getattr(torch, dtype), device=part.device)
            setattr(part, name, [empty])


@contextlib.contextmanager
def alone(parts: Sequence[Any]) -> Iterator[None]:
    """Let a metric compute from this rank's states only; a result that is cached for all ranks stays what it is."""
    before = [(part, part._to_sync, part._computed) for part in parts]
    for part in parts:
        part._to_sync, part._computed = False, None
    try:
        yield
    finally:
        for part, wanted, computed in before:
            part._to_sync, part._computed = wanted, computed
