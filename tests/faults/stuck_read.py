"""A cache file whose first opens never return: python stuck_read.py once|twice [WHERE...] [begin].

WHERE: thread (another one than main), block (of `with reads`), worker or spawn (a DataLoader worker), nosignals (a
platform without them, as Windows), fork (the thread that has read forks, and its child reads as well), swallow (the
reader makes a bad file of the error, as zipfile does).
"""

import os
import sys
import threading

import fluxguard
from fluxguard.guard import alarm
from fluxguard.guard.reads import abandoned

PATH = "image.npz"
STUCK = {"none": 0, "once": 1, "twice": 2}[sys.argv[1]]
calls = 0


@fluxguard.reads
def load(path):
    global calls
    calls += 1
    try:
        with open("late.npz" if calls <= STUCK else path, "rb") as file:
            return len(file.read())
    except OSError:
        if "swallow" in sys.argv:
            raise ValueError("File is not a zip file")  # noqa: B904
        raise


def load_in_a_block():
    with fluxguard.reads(PATH), open("late.npz", "rb") as file:
        return len(file.read())


class Files:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return load(PATH)


def read():
    if "fork" in sys.argv:
        read_in_a_fork()
    if "block" in sys.argv:
        print("read", load_in_a_block(), flush=True)
    elif "worker" in sys.argv or "spawn" in sys.argv:
        how = {"multiprocessing_context": "spawn"} if "spawn" in sys.argv else {}
        print("read", [len(batch) for batch in fluxguard.DataLoader(Files(), num_workers=1, **how)], flush=True)
    else:
        print("read", load(PATH), "calls", calls, "abandoned", abandoned(), flush=True)


def read_in_a_fork():
    global calls
    load(PATH)
    calls = 0
    child = os.fork()
    if not child:
        print("child read", load(PATH), flush=True)
        os._exit(0)
    print("child ended", os.waitpid(child, 0)[1], flush=True)
    calls = 0


if __name__ == "__main__":
    if "begin" in sys.argv:
        fluxguard.train_begins()
    if "nosignals" in sys.argv:
        alarm._SIGNAL = None
    if not os.path.exists("late.npz"):
        os.mkfifo("late.npz")
    with open(PATH, "wb") as file:
        file.write(bytes(100))
    print("waiting", flush=True)
    if "thread" in sys.argv:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
    else:
        read()
    print("done", flush=True)
