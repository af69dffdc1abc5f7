"""How late a passed limit is acted on. A program: without a word it measures waits that raise, in seconds; with the
name of one that ends the process it waits for its end."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import fluxguard
from fluxguard.errors import DeadlineExceeded
from tests.bench.measure import REPEATS, tell

LIMIT = 0.5


def never() -> Future[int]:
    """Return a future that nothing completes."""
    return Future()


def scope() -> None:
    """Outstay a scope."""
    with fluxguard.fail_after(LIMIT, "a step"):
        fluxguard.result(never())


def result() -> None:
    """Outstay the limit of a wait for a future."""
    fluxguard.result(never(), limit=LIMIT)


def read() -> None:
    """Read from a file that has no byte to give (its limit is in the environment)."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        Path(file.name).write_bytes(b"PK")
        reading, writing = os.pipe()
        try:
            with fluxguard.reads(file.name):
                os.read(reading, 1)
        finally:
            os.close(reading)
            os.close(writing)


def lateness(wait: Callable[[], None]) -> float:
    """Return how long after its limit a wait raised."""
    began = time.monotonic()
    try:
        wait()
    except DeadlineExceeded:
        return time.monotonic() - began - LIMIT
    raise AssertionError("it did not raise")


def end(kind: str) -> None:
    """Be a trainer that is ended."""
    fluxguard.train_begins()
    sys.stdout.write(f"waiting {time.time()}\n")
    sys.stdout.flush()
    if kind == "exit_after":
        with fluxguard.exit_after(LIMIT, "a step"):
            time.sleep(60)
    else:
        reading = threading.Thread(target=read)
        reading.start()
        reading.join()


def main() -> None:
    """Measure and print, or be ended."""
    if len(sys.argv) > 1:
        end(sys.argv[1])
        return
    waits = {"fail_after": scope, "result": result, "read": read}
    tell({name: statistics.median(lateness(wait) for _ in range(REPEATS)) for name, wait in waits.items()})


if __name__ == "__main__":
    main()
