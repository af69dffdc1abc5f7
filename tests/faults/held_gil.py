"""A C call that holds the interpreter for ever inside a watched wait; with "swap", it is the job that holds it.

The job does so a second after the wait has begun, when the watcher has seen it: before that nothing is armed.
"""

import ctypes
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import fluxguard

HELD = 3600


def hold():
    time.sleep(1.2)
    ctypes.PyDLL(None).sleep(HELD)


if __name__ == "__main__":
    fluxguard.train_begins()
    print("waiting", time.monotonic(), flush=True)
    if "swap" in sys.argv:
        future = ThreadPoolExecutor(1).submit(hold)
        fluxguard.result(future, "block swap", 2 * float(sys.argv[1]))
    with fluxguard.exit_after(float(sys.argv[1]), "a call into C"):
        ctypes.PyDLL(None).sleep(HELD)
