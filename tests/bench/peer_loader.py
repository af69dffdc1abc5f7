"""torch's own DataLoader with a timeout and a worker that is stopped: it does not end, raising or not. A program.

Its timeout covers the poll; the read past it, of a message that is half sent, waits for ever.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

TIMEOUT = 1
STUCK = 5


class Numbers(torch.utils.data.Dataset[int]):
    """Numbers, of which one stops its worker."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == STUCK:
            os.kill(os.getpid(), signal.SIGSTOP)
        return index


def tell(what: str) -> None:
    """Say what has happened, and when."""
    sys.stdout.write(f"{what} {time.monotonic()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    batches = iter(torch.utils.data.DataLoader(Numbers(), num_workers=2, timeout=TIMEOUT))
    next(batches)
    tell("begun")
    try:
        for _ in batches:
            pass
    except RuntimeError:
        tell("raised")
        raise
