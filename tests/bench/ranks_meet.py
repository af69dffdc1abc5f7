"""What it costs ranks to meet, ours beside torch's own, in turn. Run as a program: WORLD; it starts the ranks."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import fluxguard
from fluxguard import distributed
from fluxguard.guard.collectives import noted
from tests.bench.measure import Figures, median_us, tell

ROUNDS, INNER = 25, 24
"""Each kind comes so often in a row, and so many rows of each are taken in turn."""
NOTES = 2000
PATIENCE = timedelta(seconds=60)


def broadcast() -> None:
    """Let rank 0 decide as torch does."""
    told = [True]
    dist.broadcast_object_list(told, 0)


def note() -> None:
    """Note that a collective begins, and that it ends: two notes."""
    with noted("barrier", "end of epoch"):
        pass


KINDS: dict[str, Callable[[], Any]] = {
    "monitored_barrier": lambda: dist.monitored_barrier(timeout=PATIENCE),
    "barrier": lambda: distributed.barrier("bench"),
    "broadcast_object_list": broadcast,
    "decide": lambda: distributed.decide(lambda: True, "bench"),
    "torch barrier": dist.barrier,
}


def rows(act: Callable[[], Any]) -> list[float]:
    """Return what each of a row of calls took, in microseconds."""
    taken = []
    for _ in range(INNER):
        began = time.perf_counter_ns()
        act()
        taken.append((time.perf_counter_ns() - began) / 1000)
    return taken


def rank_main(rank: int, world: int, port: int, results: Any) -> None:
    """Measure on one rank; the last one tells: it waits for what rank 0 has to say."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    fluxguard.train_begins()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    taken: dict[str, list[float]] = {name: [] for name in KINDS}
    for act in KINDS.values():
        rows(act)  # connections are made
    for _ in range(ROUNDS):
        for name, act in KINDS.items():
            dist.barrier()
            taken[name] += rows(act)
    if rank == world - 1:
        figures: Figures = {name: statistics.median(values) for name, values in taken.items()}
        # monitored_barrier takes either about 0.1 ms or about 4, so that its median alone does not tell it.
        figures |= {f"quarter {name}": statistics.quantiles(values, n=4)[0] for name, values in taken.items()}
        results.put({**figures, "calls": float(ROUNDS * INNER), "note": median_us(note, NOTES) / 2})
    distributed.barrier("end")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, and print what they measured."""
    world = int(sys.argv[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    ranks = [context.Process(target=rank_main, args=(rank, world, port, results)) for rank in range(world)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    tell(results.get())


if __name__ == "__main__":
    main()
