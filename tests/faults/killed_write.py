"""A cache that is written, and a kill (or with "full" the end of the disk) in the middle of that; "whole" finishes."""

import os
import signal
import sys

import numpy as np

import fluxguard

PATH = "image.npz"


def save(path, size):
    with open(path, "wb") as file:
        file.write(b"half of it")
        file.flush()
        if "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    np.savez(path, latents=np.zeros(size))


if __name__ == "__main__":
    if "full" in sys.argv:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    fluxguard.whole(save)(PATH, 4096)
