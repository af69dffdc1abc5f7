"""A barrier that says who did not come. Rank 1 skips the second one, as a rank does that takes another branch."""

import torch.distributed as dist
import torch.multiprocessing

import fluxguard
from fluxguard.errors import RanksMissing


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    fluxguard.limits.use(barrier=2)
    fluxguard.barrier()
    if rank == 0:
        print("both ranks are here", flush=True)
        try:
            fluxguard.barrier()
        except RanksMissing as error:
            print(error, flush=True)
            print("missing:", *error.ranks, flush=True)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(f"{folder}/store",), nprocs=2)
