"""A trainer whose memory nobody may read; hangs in Python, with "gil" in C with the interpreter held."""

import ctypes
import os
import sys
import threading
import time

import fluxguard

PR_SET_DUMPABLE = 4
HELD = 3600


def stuck_in_python():
    time.sleep(HELD)


def stuck_in_c():
    lock = ctypes.create_string_buffer(128)
    for _ in range(2):  # twice, for ever: unlike a sleep, no signal ends it
        ctypes.PyDLL(None).pthread_mutex_lock(lock)


def stuck_in_worker():
    time.sleep(HELD)


def stuck_beside():
    threading.Event().wait()


if __name__ == "__main__":
    fluxguard.train_begins()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    threading.Thread(target=stuck_beside, daemon=True).start()
    if "worker" in sys.argv and os.fork() == 0:
        stuck_in_worker()
    print("waiting", flush=True)
    stuck_in_c() if "gil" in sys.argv else stuck_in_python()
