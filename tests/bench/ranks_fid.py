"""What a FID of two ranks takes in each way that is no deadlock. Run as a program; it starts the ranks.

The features are there already, so that what is measured is the FID and what it takes to come by one.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics.image.fid import FrechetInceptionDistance

from fluxguard import distributed
from tests.bench.measure import tell

WORLD = 2
IMAGES, FEATURES, ROUNDS = 4000, 2048, 3


class Known(torch.nn.Module):
    """Features that were computed before."""

    num_features = FEATURES

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return what came in."""
        return features


REAL, FAKE = torch.randn(2, IMAGES, FEATURES, generator=torch.Generator().manual_seed(1))


def seen(part: slice) -> FrechetInceptionDistance:
    """Return a FID that has seen a part of the images."""
    fid = FrechetInceptionDistance(Known(), normalize=True)
    fid.update(REAL[part], real=True)
    fid.update(FAKE[part], real=False)
    return fid


def ways(rank: int, folder: Path) -> dict[str, Callable[[int], Any]]:
    """Return each way by its name; a call is given the number of its round."""
    mine = slice(rank, None, WORLD)

    def remade(number: int) -> object:
        dist.destroy_process_group()
        value = seen(slice(None)).compute() if rank == 0 else None
        join(rank, folder / f"store-{number + 1}")
        return value

    def alone() -> float:
        return float(distributed.compute(seen(slice(None)), "fid", local=True))

    return {
        "all ranks": lambda _: distributed.compute(seen(mine), "fid").item(),
        "torchmetrics": lambda _: seen(mine).compute().item(),
        "group remade": remade,
        "no sync": lambda _: distributed.decide(alone, "fid"),
        "subprocess": lambda _: distributed.decide(lambda: distributed.fid_in_subprocess(REAL, FAKE), "fid"),
    }


def join(rank: int, store: Path) -> None:
    """Make the process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)


def rank_main(rank: int, folder: Path, results: Any) -> None:
    """Take each way some times, in turn; rank 0 tells the shortest time of each."""
    torch.set_num_threads(1)
    join(rank, folder / "store-0")
    taken = defaultdict(list)
    for number in range(ROUNDS):
        for name, way in ways(rank, folder).items():
            dist.barrier()
            began = time.perf_counter()
            way(number)
            taken[name].append(time.perf_counter() - began)
    if rank == 0:
        results.put({name: min(seconds) for name, seconds in taken.items()})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, and print what they measured."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with TemporaryDirectory() as name:
        ranks = [context.Process(target=rank_main, args=(rank, Path(name), results)) for rank in range(WORLD)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        if results.empty():
            sys.exit(1)
        tell(results.get())


if __name__ == "__main__":
    main()
