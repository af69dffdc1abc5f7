"""A cache file replaced by a FIFO, read in a DataLoader worker ("worker") or in main; "open" waits inside the body."""

import os
import sys

import fluxguard

PATH = "image.npz"


@fluxguard.reads
def load(path):
    with open("late.npz" if "open" in sys.argv else path, "rb") as file:
        return file.read()


class Files:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return load(PATH)


if __name__ == "__main__":
    if "begin" in sys.argv:
        fluxguard.train_begins()
    if "open" in sys.argv:
        open(PATH, "wb").close()
        os.mkfifo("late.npz")
    else:
        os.mkfifo(PATH)
    print("waiting", flush=True)
    if "worker" in sys.argv:
        list(fluxguard.DataLoader(Files(), num_workers=1))
    load(PATH)
