"""A read that gets one byte every 0.2 s, longer than the limit, and then ends; with "dry", no byte comes any more.

On another thread with "thread".
"""

import os
import sys
import threading
import time

import fluxguard

PATH = "image.npz"
EVERY = 0.2


@fluxguard.reads
def load(path, fd):
    count = 0
    while os.read(fd, 1):
        count += 1
    return count


def drip(fd, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.write(fd, b"x")
        time.sleep(EVERY)
    if "dry" in sys.argv:
        print("dry", flush=True)
    else:
        os.close(fd)


if __name__ == "__main__":
    fluxguard.train_begins()
    open(PATH, "wb").close()
    read, write = os.pipe()
    threading.Thread(target=drip, args=(write, float(sys.argv[1])), daemon=True).start()
    if "thread" in sys.argv:
        reader = threading.Thread(target=lambda: print("read", load(PATH, read), flush=True))
        reader.start()
        reader.join()
    else:
        print("read", load(PATH, read), flush=True)
