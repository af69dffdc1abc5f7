"""Disks that are full or fail while a file or a state is saved: python disks.py WAY.

In a folder "small" where the disk is to be full. What was there before must be whole afterwards, and nothing else
left: only then does the error pass through.
"""

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from told import choose, waiting

import fluxguard

OLDER, NEWER = b"older", bytes(1 << 20)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def save_file(folder):
    """Save a file over an older one; return whether that is whole and alone."""
    target = folder / "weights.safetensors"
    target.write_bytes(OLDER)
    waiting()
    try:
        with fluxguard.saved(target) as temporary:
            write(temporary, NEWER)
    except OSError:
        assert target.read_bytes() == OLDER
        assert os.listdir(folder) == [target.name]
        print("older one whole and alone", flush=True)
        raise


def save_state(folder):
    """Save a state over an older one; the same."""
    target = folder / "run-state"
    target.mkdir()
    (target / "model.safetensors").write_bytes(OLDER)

    def save(path):
        os.makedirs(path)
        write(os.path.join(path, "model.safetensors"), NEWER)

    accelerator = SimpleNamespace(distributed_type="NO", is_main_process=True, num_processes=1, save_state=save)
    waiting()
    try:
        fluxguard.save_state(accelerator, target)
    except OSError:
        assert (target / "model.safetensors").read_bytes() == OLDER
        assert os.listdir(folder) == [target.name]
        print("older one whole and alone", flush=True)
        raise


def full_file():
    save_file(Path("small"))


def full_state():
    save_state(Path("small"))


def too_big_file():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    save_file(_folder())


def too_big_state():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    save_state(_folder())


def failing_file():
    _break_the_disk()
    save_file(_folder())


def failing_state():
    _break_the_disk()
    save_state(_folder())


def _folder():
    os.mkdir("large")
    return Path("large")


def _break_the_disk():
    """Let nothing become durable any more, as when the device is gone: the page cache still takes it all."""

    def fsync(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.fsync = fsync
    sys.stdout.flush()


if __name__ == "__main__":
    choose([value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"])
