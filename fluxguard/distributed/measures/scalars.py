"""A number that every rank has, as one number for all."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from fluxguard.distributed.meetings.meeting import meet
from fluxguard.errors import InputError

_KIND = "mean"
_PAIR = struct.Struct("<?dd")  # usable, value, weight
_USABLE, _NAN = True, math.nan


def mean(
    value: Any,
    weight: Any = 1.0,
    *,
    what: str = "mean",
    limit: float | None = None,
    epoch: int | None = None,
    step: int | None = None,
) -> float:
    """Return the mean of `value` over all ranks, each counted by its `weight`; the same float on every rank.

    Both are numbers, or tensors of one element (reading one from a GPU waits for it); the mean is exact and
    then rounded once. A value that is NaN or infinite makes the mean so: a loss that is lost on one rank is
    lost for all. A rank of weight 0 has nothing to say, whatever its value; when all are of weight 0 the mean is NaN.
    The number of samples is the right weight where ranks have batches of different sizes.

    The ranks exchange 17 bytes through their store, no tensors, so it works whatever the backend, and names who does
    not come: see `barrier` for `limit`, `epoch` and `step`. Without a process group it is the value itself. Raises
    InputError on every rank, naming the rank whose value is no number or whose weight is negative, NaN or infinite,
    and what `barrier` raises.
    """
    came = meet(_KIND, what, payload=_said(value, weight), limit=limit, epoch=epoch, step=step)
    return weighted(what, [_PAIR.unpack(said) for said in came])


def weighted(what: str, said: Sequence[tuple[bool, float, float]]) -> float:
    """Return the weighted mean of what the ranks have said: whether it is usable, the value, the weight."""
    for rank, (usable, _, weight) in enumerate(said):
        if not usable:
            raise InputError(what, f"the value or weight of rank {rank} is not one number")
        if not 0 <= weight < math.inf:
            raise InputError(what, f"the weight of rank {rank} must be 0 or more and finite, not {weight:g}")
    counted = [(value, weight) for _, value, weight in said if weight]
    if not counted:
        return math.nan
    if lost := [value for value, _ in counted if not math.isfinite(value)]:
        return sum(lost)  # NaN or infinite, as the arithmetic of floats has it
    total = sum(Fraction(weight) for _, weight in counted)
    return float(sum(Fraction(value) * Fraction(weight) for value, weight in counted) / total)


def _said(value: Any, weight: Any) -> bytes:
    try:
        return _PAIR.pack(_USABLE, _number(value), _number(weight))
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch's, for a tensor of several elements
        return _PAIR.pack(not _USABLE, _NAN, _NAN)


def _number(value: Any) -> float:
    """Return a number as a float; of a loss that has a gradient, too, of which torch warns."""
    return float(value.detach() if hasattr(value, "detach") else value)
