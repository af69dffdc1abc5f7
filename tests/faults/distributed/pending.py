"""Rank 0 fails while a collective is open to which rank 1, a fork of it, never comes."""

import os
import socket
import time

import torch
import torch.distributed as dist

from fluxguard import distributed

FOR_EVER = 600.0


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        method = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    rank = 0 if os.fork() else 1
    distributed.setup(rank=rank, world_size=2, init_method=method)
    if rank == 1:
        time.sleep(FOR_EVER)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert not work.is_completed()
    print("it fails", flush=True)
    raise RuntimeError("it fails")


main()
