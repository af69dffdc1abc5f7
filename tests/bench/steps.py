"""What the guard costs in one step of 50 ms, as a patched FLUX training makes its calls. Run as a program.

A whole step of 50 ms scatters by far more than the guard costs. So a step is made of pieces, one per block, and steps
with and without the guard go in lockstep: after each piece of one comes the same piece of the other, a millisecond
later. The cost is what the median difference of such two comes to over a step. Two steps without the guard, compared
in the same way, are the noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

import fluxguard
from fluxguard.guard import losses
from tests.bench.measure import tell

BLOCKS = 57
"""Blocks of FLUX: 19 double, 38 single; with block swap the step waits for a future before each."""
STEP = 0.050
ROUNDS = 240
LOADED = ROUNDS + 30

Wait = Callable[[Future[int]], object]


class Numbers(torch.utils.data.Dataset[int]):
    """A dataset whose items cost nothing, so that the cost of handing them over shows."""

    def __len__(self) -> int:
        return LOADED

    def __getitem__(self, index: int) -> int:
        return index


def work(rounds: int) -> int:
    """Keep the processor busy, always for the same number of instructions."""
    value = 1
    for number in range(rounds):
        value = (value * 31 + number) & 0xFFFF
    return value


def rounds_for(seconds: float) -> int:
    """Return how many rounds of `work` take that long on this machine."""
    costs = []
    for _ in range(50):
        began = time.perf_counter()
        work(10_000)
        costs.append(time.perf_counter() - began)
    return int(10_000 * seconds / statistics.median(costs))


def plain_result(future: Future[int]) -> object:
    """Wait for a block as an unpatched trainer does."""
    return future.result()


def guarded_result(future: Future[int]) -> object:
    """Wait for a block as a patched trainer does."""
    return fluxguard.result(future, "block swap")


def plain_end(step: int) -> None:
    """End a step as an unpatched trainer does: the loss is read."""
    float(step)


def guarded_end(step: int) -> None:
    """End a step as a patched trainer does: the loss is checked, and the step told."""
    loss = float(step)
    losses.check_loss(loss, step)
    fluxguard.step(step, total=LOADED, epoch=1, loss=loss)


class Step:
    """The steps of one kind: with the guard or without."""

    def __init__(self, batches: Iterator[Any], wait: Wait, end: Callable[[int], None], rounds: int) -> None:
        self._batches = batches
        self._wait = wait
        self._end = end
        self._rounds = rounds
        self._block: Future[int] = Future()
        self._block.set_result(1)

    def piece(self, number: int, step: int) -> int:
        """Do one piece of a step and return how many nanoseconds it took: the batch, a block, or the end."""
        began = time.perf_counter_ns()
        if number == 0:
            next(self._batches)
        elif number <= BLOCKS:
            self._wait(self._block)
            work(self._rounds)
        else:
            self._end(step)
        return time.perf_counter_ns() - began


def lockstep(kinds: list[Step], step: int) -> list[list[int]]:
    """Make one step of each kind, piece by piece in turn, and return what the pieces of each took."""
    taken: list[list[int]] = [[] for _ in kinds]
    for number in range(BLOCKS + 2):
        for turn in range(len(kinds)):  # each kind is the first, the second and the last equally often
            kind = (number + step + turn) % len(kinds)
            taken[kind].append(kinds[kind].piece(number, step))
    return taken


def difference(one: list[list[int]], other: list[list[int]]) -> tuple[float, float, float]:
    """Return by how many microseconds a step of `other` is longer than one of `one`: its batch, blocks, and end."""
    pairs = [
        [after - before for before, after in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(one, other, strict=True)
    ]
    batch = statistics.median(pair[0] for pair in pairs)
    block = statistics.median(piece for pair in pairs for piece in pair[1:-1])
    end = statistics.median(pair[-1] for pair in pairs)
    return batch / 1000, BLOCKS * block / 1000, end / 1000


def main() -> None:
    """Measure and print."""
    fluxguard.train_begins()
    fluxguard.phase("step")
    rounds = rounds_for(STEP / BLOCKS)
    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4}
    loaders = [torch.utils.data.DataLoader(Numbers(), **options) for _ in range(2)]
    kinds = [Step(iter(loader), plain_result, plain_end, rounds) for loader in loaders]
    kinds.append(Step(iter(fluxguard.DataLoader(Numbers(), **options)), guarded_result, guarded_end, rounds))
    taken = [lockstep(kinds, step + 1) for step in range(ROUNDS)]
    plain, again, guarded = ([steps[kind] for steps in taken] for kind in range(3))
    lengths = [sum(pieces) / 1000 for pieces in plain]
    quarters = statistics.quantiles(lengths, n=4)
    batch, blocks, end = difference(plain, guarded)
    tell(
        {
            "step": statistics.median(lengths),
            "cost": batch + blocks + end,
            "batch": batch,
            "blocks": blocks,
            "end": end,
            "noise": abs(sum(difference(plain, again))),
            "scatter": quarters[2] - quarters[0],
        }
    )


if __name__ == "__main__":
    main()
