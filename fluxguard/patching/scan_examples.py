"""What each kind of finding looks like, and what to write in its place: shown by the command, the page and the tests.

Of each kind by its name, with `on some ranks` where that is another matter: the scan finds `before` and nothing in
`after`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Example:
    """One finding and its remedy."""

    before: str
    after: str

    def diff(self) -> str:
        """Return what changes from before to after, with everything around it."""
        before, after = self.before.splitlines(), self.after.splitlines()
        _, _, *lines = difflib.unified_diff(before, after, n=len(before), lineterm="")
        return "".join(f"{line}\n" for line in lines if not line.startswith("@@"))


def _example(before: str, after: str) -> Example:
    return Example(dedent(before).strip(), dedent(after).strip())


EXAMPLES = {
    "future": _example(
        "image = future.result()",
        'image = fluxguard.result(future, "the next image", limit=60)',
    ),
    "executor": _example(
        """
        with ThreadPoolExecutor(4) as pool:
            images = [future.result(timeout=60) for future in [pool.submit(load, path) for path in paths]]
        """,
        """
        pool = ThreadPoolExecutor(4)
        images = [future.result(timeout=60) for future in [pool.submit(load, path) for path in paths]]
        fluxguard.shutdown(pool)
        """,
    ),
    "loader": _example(
        "loader = DataLoader(images, num_workers=4)",
        "loader = fluxguard.DataLoader(images, num_workers=4)",
    ),
    "cache read": _example(
        "latents = np.load(path)",
        """
        with fluxguard.reads(path):
            latents = np.load(path)
        """,
    ),
    "cache write": _example(
        "np.savez(path, latents=latents)",
        """
        with fluxguard.saved(path) as temporary:
            np.savez(temporary, latents=latents)
        """,
    ),
    "barrier": _example(
        "dist.barrier()",
        'distributed.barrier("end of epoch")',
    ),
    "barrier on some ranks": _example(
        """
        if rank == 0:
            download(model)
            dist.barrier()
        """,
        """
        with distributed.on_main("the download") as is_main:
            if is_main:
                download(model)
        """,
    ),
    "collective": _example(
        "dist.all_reduce(loss)",
        'loss = distributed.mean(loss, what="loss")',
    ),
    "collective on some ranks": _example(
        """
        if accelerator.is_main_process:
            log(accelerator.gather(loss).mean())
        """,
        """
        loss = distributed.mean(loss, what="loss")
        if accelerator.is_main_process:
            log(loss)
        """,
    ),
    "object collective": _example(
        """
        stop = [is_enough(loss) if rank == 0 else None]
        dist.broadcast_object_list(stop, src=0)
        """,
        'stop = distributed.decide(lambda: is_enough(loss), "early stop")',
    ),
    "message": _example(
        "dist.send(tensor, dst=1)",
        """
        with fluxguard.exit_after(60, "sending to rank 1"):
            dist.send(tensor, dst=1)
        """,
    ),
    "metric on some ranks": _example(
        """
        fid = FrechetInceptionDistance()
        if accelerator.is_main_process:
            log(fid.compute())
        """,
        """
        fid = FrechetInceptionDistance()
        score = distributed.compute(fid, "fid")
        if accelerator.is_main_process:
            log(score)
        """,
    ),
    "break on some ranks": _example(
        """
        for epoch in range(epochs):
            train_one_epoch(model)
            if rank == 0 and is_enough(validate(model)):
                break
        """,
        """
        for epoch in range(epochs):
            train_one_epoch(model)
            if distributed.decide(lambda: is_enough(validate(model)), "early stop", epoch=epoch):
                break
        """,
    ),
    "state": _example(
        "accelerator.save_state(folder)",
        "fluxguard.save_state(accelerator, folder)",
    ),
    "state on some ranks": _example(
        """
        if accelerator.is_main_process:
            accelerator.save_state(folder)
        """,
        "fluxguard.save_state(accelerator, folder)",
    ),
    "process group": _example(
        'dist.init_process_group("nccl")',
        'distributed.setup(backend="nccl")',
    ),
    "process group on some ranks": _example(
        """
        if rank < 2:
            pair = dist.new_group([0, 1], timeout=limit)
        """,
        "pair = dist.new_group([0, 1], timeout=limit)",
    ),
    "device": _example(
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = DistributedDataParallel(model.to(device), device_ids=[device])
        """,
        "model = distributed.wrap(model)",
    ),
    "set_epoch": _example(
        """
        sampler = DistributedSampler(images)
        for epoch in range(epochs):
            train(sampler)
        """,
        """
        sampler = DistributedSampler(images)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            train(sampler)
        """,
    ),
    "no sampler": _example(
        """
        model = DistributedDataParallel(model)
        loader = fluxguard.DataLoader(images, shuffle=True)
        """,
        """
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(images)
        loader = fluxguard.DataLoader(images, sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
        """,
    ),
    "torch.load": _example(
        """
        model = DistributedDataParallel(model)
        model.load_state_dict(torch.load("last.pt"))
        """,
        """
        model = DistributedDataParallel(model)
        model.load_state_dict(torch.load("last.pt", map_location="cpu"))
        """,
    ),
    "queue": _example(
        "image = tasks.get()",
        "image = tasks.get(timeout=60)",
    ),
    "join": _example(
        "thread.join()",
        "thread.join(60)",
    ),
    "wait": _example(
        "ready.wait()",
        "ready.wait(60)",
    ),
    "process": _example(
        'subprocess.run(["nvidia-smi"])',
        'subprocess.run(["nvidia-smi"], timeout=60)',
    ),
    "network": _example(
        "page = requests.get(address)",
        "page = requests.get(address, timeout=60)",
    ),
}
"""By the kind, in the order of the page."""

IMPORTS = """\
import subprocess
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy as np
import requests
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics.image.fid import FrechetInceptionDistance

import fluxguard
from fluxguard import distributed

tasks = Queue()
"""
"""What the examples leave out."""


def of(kind: str) -> Example:
    """Return the example of a kind; on some ranks a kind that has none of its own is like a collective."""
    return EXAMPLES.get(kind) or EXAMPLES["collective on some ranks"]
