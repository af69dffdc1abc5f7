"""Cache files: a dead disk gives up, a broken file is named, set aside and made anew."""

import numpy as np

import fluxguard
from fluxguard.errors import CacheBroken


@fluxguard.reads
def load(path):
    with np.load(path) as arrays:
        return arrays["latents"]


def encode(path):
    with fluxguard.saved(path) as temporary:
        np.savez(temporary, latents=np.ones((16, 64, 64), np.float32))


def latents(path):
    try:
        return load(path)
    except CacheBroken as error:
        print(error)
        encode(path)
        return load(path)


if __name__ == "__main__":
    encode("cat.npz")
    with open("cat.npz", "r+b") as file:
        file.truncate(1000)  # as a full disk or a kill leaves it
    with fluxguard.limits.use(read=20):
        print(f"{latents('cat.npz').size} numbers")
