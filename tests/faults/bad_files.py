"""Cache files that cannot be read, with np.load: python bad_files.py WAY [page]."""

import os
import threading

import numpy as np
from told import choose, waiting

import fluxguard

PATH = "image.npz"


@fluxguard.reads
def load(path):
    with np.load(path) as npz:
        return npz["latents"]


def fifo():
    os.mkfifo(PATH)
    waiting()
    load(PATH)


def fifo_behind_a_link():
    os.mkfifo("elsewhere")
    os.symlink("elsewhere", PATH)
    waiting()
    load(PATH)


def late_fifo():
    """A file that is one when it is looked at, and blocks when it is opened, as on a mount that is gone."""
    np.savez(PATH, latents=np.zeros(4))
    os.mkfifo("late.npz")
    waiting()
    fluxguard.reads(lambda path: np.load("late.npz"))(PATH)


def late_fifo_on_a_thread():
    thread = threading.Thread(target=late_fifo)
    thread.start()
    thread.join()


def truncated():
    np.savez(PATH, latents=np.zeros((16, 64, 64)))
    os.truncate(PATH, os.path.getsize(PATH) // 2)
    waiting()
    load(PATH)


def flipped():
    np.savez(PATH, latents=np.zeros((16, 64, 64)))
    with open(PATH, "rb+") as file:
        file.seek(4096)
        file.write(b"x")
    waiting()
    load(PATH)


if __name__ == "__main__":
    choose([value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"])
