"""A training whose end hangs: hanging_end.py tracker|exit|failing|refused|upload|unfinished|again.

It saves its weights as weights.txt in the current folder after `end_later`, as a hardened trainer does.
"""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fluxguard
from fluxguard.guard.uploads import uploads

HOW = sys.argv[1]


class Accelerator:
    """Ends its training as accelerate does, seen from outside."""

    def end_training(self) -> None:
        assert Path("weights.txt").exists(), "finished before the last save"
        print("finishing", flush=True)
        if HOW == "failing":
            raise RuntimeError("the tracker's server is gone")
        if HOW == "tracker":
            time.sleep(1000)
        if HOW == "exit":
            threading.Thread(target=time.sleep, args=(1000,)).start()


@uploads
def upload(args: SimpleNamespace, path: str) -> None:
    print("uploading", flush=True)
    if HOW == "upload":
        time.sleep(1000)
    if HOW == "refused":
        raise ConnectionError("no")


def train(args: SimpleNamespace) -> None:
    accelerator = Accelerator()
    fluxguard.end_later(accelerator)
    Path("weights.txt").write_text("saved")
    upload(args, "weights.txt")
    print("saved", flush=True)


if __name__ == "__main__":
    fluxguard.train_begins()
    train(SimpleNamespace())
    if HOW != "unfinished":
        fluxguard.train_ends()
    print("over", flush=True)
    if HOW == "again":
        time.sleep(4)
        print("trained again", flush=True)
