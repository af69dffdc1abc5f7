"""Epochs of a loader of which a worker fails, against the same epochs of workers that do not.

python heals.py [begin] [spawn] [persistent] [counts] [always] FAULT...

FAULT: killed, stopped, exits; each in the last of epochs of its own, with "spawn" all in the same epoch.
Options: counts (the dataset keeps a state of its own), always (a worker fails whenever it comes to that sample).
"""

import hashlib
import os
import random
import signal
import sys

import numpy
import torch

import fluxguard

ARGS = sys.argv[1:]
FAULTS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exits": lambda: os._exit(3),
}
SAMPLES = dict(zip(FAULTS, (7, 11, 15), strict=True))
"""Where they happen: with this seed, in the last epoch, in none of the first batches."""
if "counts" in ARGS:
    SAMPLES["killed"] = 19  # in order it is so late that some batches of its worker have surely come
SEED = 8


class Drawing(torch.utils.data.Dataset):
    """What a sample holds depends on all that its worker drew before, and maybe on all that it loaded."""

    def __init__(self):
        self.loaded = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.loaded += 1
        for fault, sample in SAMPLES.items():
            if index == sample and os.path.exists(fault):
                "always" in ARGS or os.unlink(fault)
                FAULTS[fault]()
        drawn = [random.random(), numpy.random.rand(), float(torch.rand(()))]
        return torch.tensor([index, *drawn, self.loaded if "counts" in ARGS else 0], dtype=torch.float64)


def trained(faults=(), spawn=False):
    """Return a digest of what all epochs give, and of the random states of main after them."""
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)
    loader = fluxguard.DataLoader(
        Drawing(),
        batch_size=2,
        shuffle="counts" not in ARGS,
        num_workers=1 if "spawn" in ARGS else 2,  # each imports torch
        persistent_workers="persistent" in ARGS,
        multiprocessing_context="spawn" if spawn else None,
    )
    seen = hashlib.sha256()
    epochs = 2 if "persistent" in ARGS else 1
    for epoch in range(epochs):
        for fault in faults if epoch == epochs - 1 else ():
            open(fault, "w").close()
        for batch in loader:
            seen.update(batch.numpy().tobytes())
    seen.update(repr((torch.rand(3), random.random(), numpy.random.rand())).encode())
    return seen.hexdigest()


def main():
    if "begin" in ARGS:
        fluxguard.train_begins()
    undisturbed = trained()
    faults = [fault for fault in ARGS if fault in FAULTS]
    for some in [faults] if "spawn" in ARGS else [[fault] for fault in faults]:
        same = trained(some, "spawn" in ARGS) == undisturbed
        met = not any(map(os.path.exists, some))
        print(*some, "the same" if same else "another", "met" if met else "not met", flush=True)


if __name__ == "__main__":
    main()
