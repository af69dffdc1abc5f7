"""Ways of a loader worker to get stuck or to die: python workers.py WAY [once] [spawn] [page].

It happens at sample 5, in every worker that is given it; with "once" only in the first, as a fault that passes.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

import torch
from told import FOR_EVER, waiting

import fluxguard

STUCK = 5
COUNT = 10


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def unwilling():
    """Deaf to SIGTERM, which is all that torch sends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOR_EVER)


def busy():
    while True:
        pass


def holding():
    """In C, with the interpreter held."""
    ctypes.PyDLL(None).sleep(FOR_EVER)


def exits():
    os._exit(3)


def exits_well():
    """Code 0 is no failure to torch's handler of SIGCHLD."""
    os._exit(0)


def system_exit():
    raise SystemExit(4)


def killed():
    """As by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def fifo():
    os.path.exists("image.npz") or os.mkfifo("image.npz")
    with open("image.npz", "rb") as file:
        file.read()


def first_batch():
    """Sample 0 it is, then."""
    time.sleep(FOR_EVER)


def grandchild():
    """A program in a session of its own, started by the worker that gets stuck then."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    time.sleep(FOR_EVER)


def forked_grandchild():
    if os.fork():
        time.sleep(FOR_EVER)
    os.setsid()
    time.sleep(60)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        way = globals()[sys.argv[1]]
        if index == (0 if way is first_batch else STUCK) and self._due():
            way()
        return torch.tensor(index)

    def _due(self):
        if "once" not in sys.argv:
            return True
        try:
            os.close(os.open("done", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def main():
    if "page" not in sys.argv:
        fluxguard.train_begins()
    context = "spawn" if "spawn" in sys.argv else None
    loader = fluxguard.DataLoader(Samples(), num_workers=2, multiprocessing_context=context)
    seen = []
    batches = iter(loader)
    while len(seen) < COUNT:
        waiting()
        seen.append(int(next(batches)))
    print("all", seen == list(range(COUNT)), flush=True)


if __name__ == "__main__":
    main()
