"""How many steps a second a training makes on so many ranks, each with its own batch. Run as a program: WORLD.

On GPUs where there are enough of them, with NCCL, and how busy each was; else on the CPU with gloo.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fluxguard import distributed
from tests.bench.measure import tell

WARM, STEPS = 10, 100
WIDTH_ON_GPU, WIDTH_ON_CPU, BATCH = 8192, 256, 64
EVERY = 0.2
"""Seconds between two looks at how busy the GPUs are."""


def rank_main(rank: int, world: int, folder: str, results: Any) -> None:
    """Train on one rank; rank 0 tells the steps per second, counted when all were through."""
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    with distributed.setup(rank=rank, world_size=world, init_method=f"file://{folder}/store") as here:
        device = torch.device("cpu") if here.device is None else torch.device("cuda", here.device)
        width = WIDTH_ON_CPU if here.device is None else WIDTH_ON_GPU
        torch.set_num_threads(1)
        distributed.seed(1)
        layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
        model = distributed.wrap(torch.nn.Sequential(*layers).to(device), from_rank_0=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = torch.randn(BATCH, width, device=device)
        began = 0.0
        for step in range(WARM + STEPS):
            if step == WARM:
                distributed.barrier("warm")
                (Path(folder) / "warm").touch()
                began = time.perf_counter()
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        loss.item()  # waits for the GPU
        distributed.barrier("through")
        if rank == 0:
            results.put(STEPS / (time.perf_counter() - began))


def busy(world: int, warm: Path, over: threading.Event, found: list[list[int]]) -> None:
    """Note how busy each GPU is from the first measured step on, in percent."""
    import pynvml

    pynvml.nvmlInit()
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(world)]
    while not over.wait(EVERY):
        if warm.exists():
            found.append([pynvml.nvmlDeviceGetUtilizationRates(card).gpu for card in cards])


def main() -> None:
    """Start the ranks, and print what they measured."""
    world = int(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    over, found = threading.Event(), list[list[int]]()
    with TemporaryDirectory() as folder:
        if torch.cuda.device_count() >= world:
            threading.Thread(target=busy, args=(world, Path(folder) / "warm", over, found), daemon=True).start()
        ranks = [context.Process(target=rank_main, args=(rank, world, folder, results)) for rank in range(world)]
        for one in ranks:
            one.start()
        steps = results.get()
        over.set()
        for one in ranks:
            one.join()
    tell({"steps": steps, **{f"GPU {card}": mean(shares) for card, shares in enumerate(zip(*found, strict=True))}})


if __name__ == "__main__":
    main()
