"""Pictures that pool threads read while the trainer waits: python slow_pictures.py HOW [begin].

HOW: slow (a byte every 0.2 s for 4 s), stuck (a FIFO that nobody writes to), shutdown (stuck, but only the executor is
waited for), decoding (no byte, a busy processor for 3 s), broken (an error in the trainer while a picture is stuck).
"""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fluxguard

HOW = sys.argv[1]
LASTS = 4.0


def feed(path):
    with open(path, "wb", buffering=0) as pipe:
        until = time.monotonic() + LASTS
        while time.monotonic() < until:
            pipe.write(b"x")
            time.sleep(0.2)


def load_image(path):
    if HOW == "decoding":
        until = time.monotonic() + LASTS
        while time.monotonic() < until:
            sum(range(10000))
        return path
    with open(path, "rb", buffering=0) as file:
        while file.read(1):
            pass
    return path


def cache(executor, path):
    try:
        picture = executor.submit(load_image, path)
        print("waiting", flush=True)
        if HOW == "broken":
            raise MemoryError("in the trainer")
        if HOW != "shutdown":
            print("read", fluxguard.result(picture, "image loading", file=path), flush=True)
    finally:
        fluxguard.shutdown(executor, "image loading")


if __name__ == "__main__":
    if "begin" in sys.argv:
        fluxguard.train_begins()
    os.mkfifo("picture.png")
    if HOW == "slow":
        threading.Thread(target=feed, args=("picture.png",), daemon=True).start()
    elif HOW != "decoding":
        threading.Thread(target=os.open, args=("picture.png", os.O_RDWR), daemon=True).start()
    cache(ThreadPoolExecutor(2), "picture.png")
    print("done", flush=True)
