"""Two ranks that meet, until one of them does not come: the other says which, and what it does instead."""

import time

import torch.distributed as dist
import torch.multiprocessing

import fluxguard
from fluxguard import distributed
from fluxguard.errors import RanksMissing


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    fluxguard.limits.use(barrier=2)
    found = [None, None]
    for epoch in range(2):
        mine = {"rank": rank, "hardest": 7 * rank + epoch}
        with distributed.collective("gather the hard negatives"):
            dist.all_gather_object(found, mine)
        distributed.barrier("end of epoch", epoch=epoch)
    with distributed.on_main("validate") as main:
        if main:
            print("rank 0 validates, with", found[1]["hardest"], flush=True)  # no collective: the others are not in it
    if rank == 1:
        time.sleep(3)  # it is busy with something that the other one does not know of
        return
    try:
        distributed.barrier("exported")
    except RanksMissing as error:
        print(error, flush=True)
        print("missing:", *error.ranks, flush=True)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(f"{folder}/store",), nprocs=2)
