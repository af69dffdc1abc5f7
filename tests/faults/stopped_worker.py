"""DataLoader workers of which one is stopped (SIGSTOP), in a trainer ("begin") or a plain process.

Options: begin, persistent, spawn, accelerate, pin, middle (stops in the middle of a message), away (main needs no batch
for a while), pinstuck (no worker but the pinning thread is stuck), pinend (it is stuck only when the iterator ends).
"""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import torch

import fluxguard
import fluxguard.errors

ARGS = sys.argv[1:]
STUCK = 13
pinning = threading.Event()


def send_half(self, message, write=os.write):
    write(self.fileno(), message[: len(message) // 2])
    os.kill(os.getpid(), signal.SIGSTOP)


def pin_on_a_cpu():
    """Let torch start its pinning thread without a device to pin for."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda _: None
    torch.Tensor.pin_memory = pinned


def pinned(tensor, *_):
    if "pinstuck" in ARGS and int(tensor) == STUCK:
        threading.Event().wait()
    if "pinend" in ARGS and int(tensor) == STUCK - 3:
        pinning.set()
        threading.Event().wait()
    return tensor


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == STUCK and not {"pinstuck", "pinend"} & set(ARGS):
            if "middle" in ARGS:
                Connection._send = send_half
            else:
                os.kill(os.getpid(), signal.SIGSTOP)
        return torch.tensor(index)


def main():
    if "begin" in ARGS:
        fluxguard.train_begins()
    if "pin" in ARGS:
        pin_on_a_cpu()
    loader = fluxguard.DataLoader(
        Numbers(),
        batch_size=1,
        num_workers=2,
        pin_memory="pin" in ARGS,
        persistent_workers="persistent" in ARGS,
        multiprocessing_context="spawn" if "spawn" in ARGS else None,
    )
    if "accelerate" in ARGS:
        from accelerate import Accelerator

        loader = Accelerator(cpu=True).prepare(loader)
    seen = []
    try:
        for batch in loader:
            seen.append(int(batch))
            if len(seen) == 1:
                print("first", flush=True)
            print("waiting", seen, flush=True)
            if "away" in ARGS and len(seen) == 8:
                time.sleep(6)  # a trainer that samples images needs no batch, however long one takes
                print("back", flush=True)
            if "pinend" in ARGS and len(seen) == STUCK - 5:
                pinning.wait()
                print("leaving", flush=True)
                break
    except fluxguard.errors.WorkerStuck as error:
        print("raised", type(error).__name__, error, error.workers, error.samples, flush=True)
        raise


if __name__ == "__main__":
    main()
