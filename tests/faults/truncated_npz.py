"""A cache file cut in half by a kill while it was written, read in a DataLoader worker ("worker") or in main."""

import os
import sys

import numpy as np

import fluxguard

PATH = "image.npz"


@fluxguard.reads
def load(path):
    npz = np.load(path)
    return npz["latents"], npz["original_size"]


class Files:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return load(PATH)[0]


if __name__ == "__main__":
    np.savez(PATH, latents=np.random.rand(16, 64, 64), original_size=np.array([64, 64]))
    os.truncate(PATH, os.path.getsize(PATH) // 2)
    if "worker" in sys.argv:
        list(fluxguard.DataLoader(Files(), num_workers=1))
    load(PATH)
