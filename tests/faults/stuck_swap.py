"""A block swap whose job never returns, on a pool thread that the interpreter would join at exit."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fluxguard

if __name__ == "__main__":
    if "begin" in sys.argv:
        fluxguard.train_begins()
    future = ThreadPoolExecutor(1).submit(threading.Event().wait)
    print("waiting", flush=True)
    fluxguard.result(future, "block swap")
