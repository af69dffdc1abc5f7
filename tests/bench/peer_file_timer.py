"""What torch's own FileTimer takes: a scope, and (with "late") the end of a worker that outstays one. A program."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from torch.distributed.elastic.timer.api import configure, expires
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerClient, FileTimerServer

from tests.bench.measure import median_us, tell

LIMIT = 2.0
AFTER = 5.0
"""Seconds in which the server ends its own process after a worker."""
CALLS = 20
"""In a row; with thousands its pipe is full and it raises into the trainer."""


def scope() -> None:
    """Enter and leave a scope with a limit."""
    with expires(after=60, scope="a step"):  # unnamed, it inspects the whole stack for a name
        pass


def worker() -> None:
    """Be the worker, which tells the server of its scopes; the last one is outstayed when "late" is asked for."""
    scope()
    if "late" in sys.argv:
        with expires(after=LIMIT, scope="a step"):
            sys.stdout.write("waiting\n")
            sys.stdout.flush()
            time.sleep(60)
    tell({"scope": median_us(scope, CALLS)})
    sys.stdout.flush()


def main() -> None:
    """Serve one worker; a scope that is outstayed ends the worker, and then this process too."""
    logging.disable()
    pipe = str(Path(tempfile.mkdtemp()) / "timer")
    FileTimerServer(pipe, "bench").start()
    configure(FileTimerClient(pipe))
    if not os.fork():
        worker()
        os._exit(0)
    os.wait()
    time.sleep(AFTER if "late" in sys.argv else 0)
    os._exit(0)  # its server's thread would be joined


if __name__ == "__main__":
    main()
