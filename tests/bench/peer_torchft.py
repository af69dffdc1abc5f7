"""What torchft takes: a scope with a timeout, a future with one, and how late that fires. A program."""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import sys
import time
from datetime import timedelta

import torch

from tests.bench.measure import REPEATS, median_us, tell

LIMIT = 0.3
CALLS = 1000


def main() -> None:
    """Measure and print."""
    futures = importlib.import_module("torchft.futures")
    long = timedelta(seconds=60)

    def scope() -> None:
        with futures.context_timeout(lambda: None, long):
            pass

    def result() -> None:
        futures.future_timeout(done, long).wait()

    def lateness() -> float:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            futures.future_timeout(torch.futures.Future(), timedelta(seconds=LIMIT)).wait()
        return time.monotonic() - began - LIMIT

    done: torch.futures.Future[int] = torch.futures.Future()
    done.set_result(1)
    tell(
        {
            "scope": median_us(scope, CALLS),
            "result": median_us(result, CALLS),
            "late": statistics.median(lateness() for _ in range(REPEATS)),
        }
    )
    sys.stdout.flush()
    os._exit(0)  # its threads are not daemons everywhere


if __name__ == "__main__":
    main()
