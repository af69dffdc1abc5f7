"""The measurements of a check of the ranks; each may block, as collectives do, and is bounded by its caller."""

from __future__ import annotations

import statistics
import time
from typing import Any

from fluxguard.distributed.checks import figures
from fluxguard.distributed.start import devices
from fluxguard.distributed.world import Store, World

_SMALL, _LARGE, _TIMES = 20, 3, 5
_BYTES_A_NUMBER = 4
_LARGEST = 1 << 24  # numbers up to this are exact in 32 bits
_SIDE = 256  # of the matrices: small enough for a processor, and large enough for a clock


class Measures:
    """What one rank measures together with the others; each method is called on all of them, in the same order."""

    def __init__(self, world: World, numbers: int) -> None:
        import torch
        import torch.distributed as dist

        devices.use(world.device)
        self._torch, self._dist, self._world = torch, dist, world
        self._on = torch.device("cpu") if world.device is None else torch.device("cuda", world.device)
        self._numbers = numbers

    def sums(self) -> bool:
        """Return whether all-reduce adds what all ranks bring, few numbers and many."""
        size = self._world.size
        right = True
        for count in (1, self._numbers):
            places = self._torch.arange(count, device=self._on, dtype=self._torch.float32) % (
                _LARGEST // (size * size + 1)
            )
            mine = places + self._world.rank
            self._dist.all_reduce(mine)
            right = right and bool(self._torch.equal(mine, places * size + sum(range(size))))
        return right

    def latency(self) -> float:
        """Return the seconds of an all-reduce of one number, the median of some."""
        return self._timed(self._torch.ones(1, device=self._on), _SMALL)

    def bandwidth(self) -> float:
        """Return the bytes a second of a large all-reduce."""
        many = self._torch.zeros(self._numbers, device=self._on)
        return self._numbers * _BYTES_A_NUMBER / self._timed(many, _LARGE)

    def link(self) -> float | None:
        """Return the bytes a second to the better of our neighbours, while nobody else uses either."""
        best: float | None = None
        for pairs in figures.rounds(self._world.size):
            self._dist.all_reduce(self._torch.ones(1, device=self._on))
            for one, other in pairs:
                if self._world.rank in (one, other):
                    best = max(best or 0.0, self._exchange(one, other))
        return best

    def compute(self) -> float:
        """Return floating point operations a second."""
        left = self._torch.ones(_SIDE, _SIDE, device=self._on)
        seconds = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            left @ left
            self._finish()
            seconds.append(time.perf_counter() - began)
        return float(2 * _SIDE**3 / min(seconds))

    def _exchange(self, one: int, other: int) -> float:
        many = self._torch.zeros(self._numbers, device=self._on)
        send, receive = self._dist.send, self._dist.recv
        first = self._world.rank == one
        seconds = []
        for _ in range(_LARGE):
            began = time.perf_counter()
            for sends in (first, not first):
                if sends:
                    send(many, other if first else one)
                else:
                    receive(many, other if first else one)
            self._finish()
            seconds.append((time.perf_counter() - began) / 2)
        return self._numbers * _BYTES_A_NUMBER / min(seconds)

    def _timed(self, tensor: Any, times: int) -> float:
        seconds = []
        for _ in range(times + 1):  # the first one connects
            began = time.perf_counter()
            self._dist.all_reduce(tensor)
            self._finish()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[1:])

    def _finish(self) -> None:
        if self._world.device is not None:
            self._torch.cuda.synchronize(self._world.device)


def clock(store: Store, world: World, name: str) -> tuple[float, float]:
    """Return by how much the clock of this rank is ahead of rank 0's, and by how much that may be wrong.

    Rank 0 answers each of the others in turn, through the store, under a name that was not used before.
    """
    if world.rank == 0:
        for rank in range(1, world.size):
            for number in range(_TIMES):
                store.wait([f"{name}/{rank}/{number}/asked"])
                store.set(f"{name}/{rank}/{number}/said", repr(time.time()))
        return 0.0, 0.0
    samples = []
    for number in range(_TIMES):
        key = f"{name}/{world.rank}/{number}"
        asked = time.time()
        store.set(f"{key}/asked", b"1")
        said = float(store.get(f"{key}/said"))
        samples.append((asked, said, time.time()))
    return figures.offset(samples)
