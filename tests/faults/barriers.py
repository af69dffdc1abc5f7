"""Ranks (gloo, CPU) of a distributed trainer at a barrier: python barriers.py WORLD FAULT [begin].

Fault, of the last rank: none, stuck (never comes), dead (killed), late (comes in time), after (comes when the others
have given it up), beating (comes after the limit, but its heartbeat goes on), silent (comes after the limit, in the
phase given), stopped-host (rank 0, which holds the store, is stopped), gone-host (rank 0 is killed), collective (stuck
in front of an all_reduce), destroyed (a barrier after the group is gone).
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator

import fluxguard
from fluxguard.errors import RanksMissing

WORLD, FAULT = int(sys.argv[1]), sys.argv[2]
LATE, AFTER = 0.6, 1.6


class Alone:
    def wait_for_everyone(self):
        print("the accelerator's own wait", flush=True)


@fluxguard.collective
def all_reduce_network(accelerator, tensor):
    return accelerator.reduce(tensor, reduction="mean")


def misbehave(rank):
    if FAULT == "stuck":
        time.sleep(3600)
    if FAULT == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "late":
        time.sleep(LATE)
    if FAULT == "after":
        time.sleep(AFTER)
    if FAULT == "silent":
        fluxguard.phase(sys.argv[-1])
        time.sleep(2.5)
    if FAULT == "beating":
        for done in range(25):
            fluxguard.progress(done, 25)
            time.sleep(0.1)


def rank_main(rank):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3]
    )
    if "begin" in sys.argv:
        fluxguard.train_begins()
        fluxguard.phase("saving" if FAULT == "dead" else "step")  # while it saves, a living rank may be silent
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == WORLD
    fluxguard.barrier(accelerator)
    if rank == WORLD - 1:
        misbehave(rank)
    if rank == 0 and FAULT == "stopped-host":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 0 and FAULT == "gone-host":
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "destroyed":
        dist.destroy_process_group()
    print(f"rank {rank} waiting {time.time()}", flush=True)
    try:
        if FAULT == "collective":
            if rank == WORLD - 1:
                time.sleep(3600)
            all_reduce_network(accelerator, torch.ones(3))
        elif FAULT == "destroyed":
            fluxguard.barrier(Alone())
        else:
            fluxguard.barrier(accelerator)
            fluxguard.barrier()
    except RanksMissing as error:
        print(f"rank {rank} raised RanksMissing {error} {error.ranks}", flush=True)
        raise
    print(f"rank {rank} passed", flush=True)


if __name__ == "__main__":
    processes = [mp.get_context("fork").Process(target=rank_main, args=(rank,)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for rank, process in enumerate(processes):
        never = WORLD - 1 if FAULT in ("stuck", "collective") else 0 if FAULT == "stopped-host" else None
        if rank != never:
            process.join()
    print("codes", [process.exitcode for process in processes], flush=True)
    for process in processes:
        process.kill()
