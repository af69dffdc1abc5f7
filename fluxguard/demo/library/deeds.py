"""Faults that a test asks for by files in MINIATURE_FAULTS, one for each: PLACE.DEED, such as `step.spin`.

An empty file lets the deed happen the next time the trainer comes to the place, once. In it may stand, in any order:
a step, before which nothing happens; `always`, for each time at that step (at every step when none is named) instead
of once; and, for deeds that take their time, seconds as in `2.5s`.
"""

import ctypes
import errno
import hashlib
import importlib
import os
import re
import signal
import sys
import threading
import time

import torch

SECONDS = 1.0
ROOM = 64 << 20
FLOOD, LINE = 100 << 20, 100


def met(place: str, step: int = 0, batch=None) -> None:
    """Do what a test has asked for at this place."""
    folder = os.environ.get("MINIATURE_FAULTS")
    if not folder or not os.path.isdir(folder):
        return
    for name in sorted(os.listdir(folder)):
        if not name.startswith(place + "."):
            continue
        words = due(os.path.join(folder, name), step)
        if words is not None:
            deed = name.partition(".")[2]
            sys.stderr.write(f"\nminiature: on purpose: {name} at step {step} (pid {os.getpid()})\n")
            sys.stderr.flush()
            DEEDS[deed](batch, next((float(word[:-1]) for word in words if word.endswith("s")), SECONDS))


def due(path: str, step: int) -> list[str] | None:
    """Return the words in the file if it is time, else None; one that is meant once is used up."""
    try:
        with open(path, encoding="ascii") as file:
            words = file.read().split()
        wanted = next((int(word) for word in words if word.isdigit()), None)
        if "always" in words:
            words.remove("always")
            return words if wanted in (None, step) else None
        if wanted is not None and step < wanted:
            return None
        os.remove(path)
    except FileNotFoundError:  # not asked, or another process was faster
        return None
    return words


def hang(batch, seconds):
    threading.Event().wait()


def slow(batch, seconds):
    time.sleep(seconds)


def spin(batch, seconds):
    """Compute for ever with the interpreter's lock given back."""
    block = bytes(ROOM)
    while True:
        hashlib.sha256(block)


def seize(batch, seconds):
    """Compute for ever inside one call of C that keeps the interpreter's lock."""
    re.match("(a+)+$", "a" * 64 + "b")


def fail(batch, seconds):
    raise RuntimeError("the miniature was asked to fail")


def leave(batch, seconds):
    """End as if all were well."""
    os._exit(0)


def crash(batch, seconds):
    """Read where nothing is."""
    ctypes.string_at(0)


def die(batch, seconds):
    """End as the kernel ends what took too much memory."""
    leak = bytearray(4 * ROOM)
    os.kill(os.getpid(), signal.SIGKILL)
    del leak


def oom(batch, seconds):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.12 GiB is "
        "free. Including non-PyTorch memory, this process has 14.64 GiB memory in use."
    )


def memory(batch, seconds):
    """Ask for more than the process may have, and let the error out."""
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    bytearray(32 << 30)


def hog(batch, seconds):
    """Take memory for as long as there is any."""
    taken = []
    while True:
        taken.append(b"x" * ROOM)


def nan(batch, seconds):
    batch["latents"].fill_(float("nan"))


def flood(batch, seconds):
    for _ in range(FLOOD // LINE // 1000):
        sys.stderr.write(("W" * (LINE - 1) + "\n") * 1000)


def mutter(batch, seconds):
    """Say the same error for ever, and come no further."""
    while True:
        sys.stderr.write("ERROR connection to the tracker lost, trying again\n")
        time.sleep(seconds / 20)


def quota(batch, seconds):
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "state")


def missing(batch, seconds):
    with open("/models/unet/flux1-dev.sft", "rb"):
        pass


def package(batch, seconds):
    importlib.import_module("optimizer_that_nobody_installed")


def gated(batch, seconds):
    raise OSError(
        "You are trying to access a gated repo.\nMake sure to have access to it at "
        "https://huggingface.co/black-forest-labs/FLUX.1-dev.\n401 Client Error. Cannot access gated repo for url "
        "https://huggingface.co/black-forest-labs/FLUX.1-dev/resolve/main/ae.safetensors."
    )


def download(batch, seconds):
    """Begin a download that stops in the middle."""
    for percent in (10, 40):
        sys.stderr.write(f"\rflux1-dev.safetensors: {percent:3d}%|####      | {percent / 4.2:.1f}G/23.8G [00:01<00:09]")
        sys.stderr.flush()
    hang(batch, seconds)


DEEDS = {
    deed.__name__: deed
    for deed in (
        *(hang, slow, spin, seize, fail, leave, crash, die, oom, memory),
        *(hog, nan, flood, mutter, quota, missing, package, gated, download),
    )
}
