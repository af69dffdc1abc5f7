"""Two ranks, over NCCL where there are two GPUs: they agree, and then rank 1 does not come. python nccl.py LIMIT"""

import os
import sys
import time
from tempfile import TemporaryDirectory

import torch
import torch.multiprocessing

from fluxguard import distributed, limits
from fluxguard.errors import RanksMissing


def train(rank, folder, limit):
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    with distributed.setup(rank=rank, world_size=2, init_method=f"file://{folder}/store") as world:
        device = torch.device("cpu") if world.device is None else torch.device("cuda", world.device)
        model = distributed.wrap(torch.nn.Linear(4, 2).to(device), from_rank_0=True)
        model(torch.ones(3, 4, device=device)).sum().backward()
        agreed = distributed.decide(lambda: 7, "how many"), distributed.mean(float(rank))
        print(f"rank {rank} on {world.backend} {device}: {agreed}", flush=True)
        limits.use(barrier=limit)
        if rank == 1:
            time.sleep(3 * limit)
            os._exit(0)
        try:
            distributed.barrier("end of epoch")
        except RanksMissing as error:
            print(f"rank {rank} misses {error.ranks}: {error}", flush=True)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(folder, float(sys.argv[1])), nprocs=2)
