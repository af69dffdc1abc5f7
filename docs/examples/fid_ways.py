"""Four ways to a validation FID in a training of several ranks that is no deadlock, the deadlock itself, and what a FID
is for: saving the best. Two ranks on a CPU; the network that makes the features is small and untrained."""

import time
from datetime import timedelta
from functools import partial
from operator import lt
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing
from torchmetrics.image.fid import FrechetInceptionDistance

import fluxguard
from fluxguard import distributed
from fluxguard.errors import RanksDisagree

WORLD = 2
SHORT = timedelta(seconds=1)  # so that the deadlock is over soon; by default it is half an hour, 10 minutes with NCCL


class Features(torch.nn.Module):
    """Stands in for InceptionV3: any module that says how many features it makes will do."""

    num_features = 32

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 5, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))

    @torch.no_grad()
    def forward(self, images):
        return self.layers(images).flatten(1)


def images(quality=0.7):
    """Return validation images and generated ones; the same on every rank, as a dataset would be."""
    real, noise = torch.rand(2, 96, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return real, real * quality + noise * (1 - quality)


def seen(part, quality=0.7, **options):
    """Return a FID that has seen a part of the images."""
    fid = FrechetInceptionDistance(Features(), normalize=True, **options)
    real, fake = images(quality)
    fid.update(real[part], real=True)
    fid.update(fake[part], real=False)
    return fid


ALL = slice(None)


def deadlock(rank):
    """Rank 0 alone computes, and waits for states that no other rank sends."""
    if rank == 0:
        return seen(ALL).compute()
    time.sleep(2 * SHORT.total_seconds())  # it trains on
    return None


def guarded(rank):
    """The same mistake, with the guard: both ranks learn at once who is where."""
    if rank == 0:
        return distributed.compute(seen(ALL), "fid")
    return distributed.barrier("end of epoch")


def all_ranks_compute(rank):
    """Way 1: each rank sees its part of the images, all compute, rank 0 reports."""
    fid = seen(slice(rank, None, WORLD))
    return distributed.compute(fid, "fid").item()


def group_remade(rank, store):
    """Way 2: without a process group torchmetrics syncs nothing, so rank 0 computes while there is none."""
    dist.destroy_process_group()
    value = seen(ALL).compute().item() if rank == 0 else None
    join(rank, store)
    return distributed.decide(lambda: value, "fid")


def no_sync(rank):
    """Way 3: rank 0 has seen all the images by itself, and says so."""
    fid = seen(ALL) if rank == 0 else None
    return distributed.decide(lambda: distributed.compute(fid, "fid", local=True).item(), "fid")


def in_subprocess(rank):
    """Way 4: rank 0 has the features; a process of its own turns them into a number, within a limit."""

    def fid():
        real, fake = (Features()(some) for some in images())
        return distributed.fid_in_subprocess(real, fake, limit=60)

    return distributed.decide(fid, "fid")


def save_the_best(rank, folder):
    """What a FID is for: rank 0 decides by it, and every rank knows."""
    model = torch.nn.Linear(4, 4)
    best = float("inf")
    for epoch, quality in enumerate([0.3, 0.8, 0.6]):
        fid = distributed.compute(seen(slice(rank, None, WORLD), quality), "fid", epoch=epoch).item()
        if distributed.decide(partial(lt, fid, best), "is it the best", epoch=epoch):
            best = fid
            with distributed.on_main("saving the best") as main:
                if main:
                    with fluxguard.saved(f"{folder}/best.pt") as path:
                        torch.save(model.state_dict(), path)
        say(rank, f"epoch {epoch}: fid {fid:.4f}, best {best:.4f}")


def say(rank, words):
    if rank == 0:
        print(words, flush=True)


def join(rank, store, timeout=None):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout)


def train(rank, folder):
    torch.set_num_threads(1)
    join(rank, f"{folder}/first", SHORT)
    try:
        deadlock(rank)
    except RuntimeError as error:
        say(rank, f"deadlock: {error}")
    dist.destroy_process_group()

    join(rank, f"{folder}/second")
    try:
        guarded(rank)
    except RanksDisagree as error:
        say(rank, f"guarded: {error}")
    dist.destroy_process_group()

    join(rank, f"{folder}/third")
    for way, *more in ((all_ranks_compute,), (group_remade, f"{folder}/fourth"), (no_sync,), (in_subprocess,)):
        begin = time.monotonic()
        value = way(rank, *more)
        say(rank, f"{way.__name__}: {value:.4f} after {time.monotonic() - begin:.2f} s")
    save_the_best(rank, folder)
    distributed.barrier("the end")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(folder,), nprocs=WORLD)
