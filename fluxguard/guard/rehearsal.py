"""What a fresh worker does again before it takes over from a killed one, and the proof that it goes on alike.

What a worker loads next depends on its random states and on what its copy of the dataset has become. The states come
with every batch. The copy is brought along by fetching its first batch of the epoch again: sd-scripts' datasets, for
one, learn the epoch only while a batch is collated. The proof is the batch that it delivered last: fetched again, it
must be the same, bit for bit.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxguard.guard.randoms import Snapshot

WARM_UP, CHECK = "fluxguard warm-up", "fluxguard check"
"""Stand for the number of a batch that is no batch of the training."""

_GENERATORS = (("torch", "Generator"), ("numpy.random", "Generator"), ("numpy.random", "RandomState"))
_MOST = 20_000  # objects of a dataset that are looked at; its pictures come after what it draws with

Message = Any
"""What a worker is given: torch's (number of the batch, samples), or random states to go on with."""


@dataclass(frozen=True)
class GoOnWith:
    """A message to a worker: the random states to go on with."""

    states: Snapshot


@dataclass
class Past:
    """What one worker has delivered in this epoch."""

    count: int = 0
    first: Any = None
    """The samples of its first batch."""
    last: Any = None
    """The samples of its last batch."""
    batch: Any = None
    """Its last batch."""
    before: Snapshot | None = None
    """The random states before its last batch; None for those that every worker of its number starts with."""
    after: Snapshot | None = None
    """The random states after its last batch; None as above."""
    older: bool = False
    """Whether it has lived in an epoch before: then its copy of the dataset may hold more than a fresh one can."""

    def delivers(self, samples: Any, batch: Any, states: Snapshot) -> None:
        """Take note of one batch."""
        if not self.count:
            self.first = samples
        self.count += 1
        self.last, self.batch = samples, batch
        self.before, self.after = self.after, states

    def begins_epoch(self) -> None:
        """Take note of a new epoch."""
        self.older = self.older or self.after is not None
        self.count = 0
        self.first = self.last = self.batch = None

    def messages(self) -> list[Message]:
        """Return what a fresh worker must be given before its own work."""
        if not self.count:
            return [] if self.after is None else [GoOnWith(self.after)]
        given: list[Message] = []
        if self.count > 1 or self.older:
            given.append((WARM_UP, self.first))
            if self.before is not None:
                given.append(GoOnWith(self.before))
        given.append((CHECK, self.last))
        if self.after is not None:
            given.append(GoOnWith(self.after))
        return given

    def doubt(self) -> str:
        """Return why a fresh worker may not go on as this one would have, where no batch can tell; else nothing."""
        if self.count or not self.older:
            return ""
        return "a worker that had lived for epochs had loaded nothing in this one that could be compared"

    def differs(self, batch: Any, states: Snapshot) -> str:
        """Return in words that the last batch, or what is drawn after it, is another now; nothing when not."""
        if states != self.after:
            return "a batch that was fetched again draws other random numbers"
        try:
            equal = same(self.batch, batch)
        except Exception:  # noqa: BLE001 - what a batch may be is its dataset's choice, and not all can be compared
            return "a batch that was fetched again cannot be compared"
        return "" if equal else "a batch that was fetched again is not the same"


def draws_its_own(dataset: Any) -> bool:
    """Return whether a dataset holds a generator of random numbers of its own: no state of that comes with a batch."""
    seen: dict[int, Any] = {}
    waiting = [dataset]
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, type(None))):
            continue
        seen[id(one)] = one
        if isinstance(one, random.Random) or any(_is_a(one, *kind) for kind in _GENERATORS):
            return True
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        else:
            waiting += getattr(one, "__dict__", {}).values()
    return False


def same(one: Any, other: Any) -> bool:
    """Return whether two batches are equal bit for bit; False, or an error, for what cannot be compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (float, complex)):
        return struct.pack("dd", one.real, one.imag) == struct.pack("dd", other.real, other.imag)
    if isinstance(one, (str, bytes, int, set, frozenset, type(None))):
        return bool(one == other)
    if _is_a(one, "torch", "Tensor"):
        return _same_tensors(one, other)
    if _is_a(one, "numpy", "ndarray") or _is_a(one, "numpy", "generic"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    held = getattr(one, "__dict__", None)  # what holds nothing there, holds it where nobody can tell
    return bool(held) and same(held, vars(other))


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _same_tensors(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.is_quantized or one.layout != sys.modules["torch"].strided:
        return False  # its bytes are not all there is of it
    torch = sys.modules["torch"]
    flat, also = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return bool(torch.equal(flat, also))
