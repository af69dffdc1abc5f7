"""Trainers that are slow and healthy, under limits of 1 s: python healthy.py WAY. Each ends with "lived" and code 0."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from told import LIMIT, choose

import fluxguard

SLOW = 3.0
"""Seconds: far beyond the limit."""
EVERY = 0.2
STOPPED = 7.0
"""Longer than the limit, and than what counts as a late tick."""
PATIENT = 3.0
"""The limit of what is stopped meanwhile: the time until the next tick, a second at the most, is counted."""


def trickle(read, write, seconds=SLOW):
    """Read a byte now and then, as from a disk that has much to do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.write(write, b"x")
        os.read(read, 1)
        time.sleep(EVERY)


@fluxguard.reads
def load(path):
    trickle(*os.pipe())


def suspend():
    """Stop all of this program in a moment, and let it go on much later, as a laptop that is closed."""
    script = f"echo; sleep 0.1; kill -STOP -{os.getpgrp()}; sleep {STOPPED}; kill -CONT -{os.getpgrp()}"
    shell = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    shell.stdout.readline()


def resumed():
    """Work until this program was stopped and goes on, and a moment longer."""
    last = time.monotonic()
    while time.monotonic() - last < STOPPED / 2:
        last = time.monotonic()
        time.sleep(0.01)
    time.sleep(0.3)


def slow_disk():
    open("image.npz", "wb").close()
    load("image.npz")


def slow_disk_on_a_thread():
    thread = threading.Thread(target=slow_disk)
    thread.start()
    thread.join()


def latents():
    """Pool threads read pictures from a slow disk while the trainer waits for one after the other."""
    with ThreadPoolExecutor(2) as executor:
        for picture in [executor.submit(trickle, *os.pipe(), 1.5) for _ in range(4)]:
            fluxguard.result(picture, "image loading", file="picture.png")
        fluxguard.shutdown(executor, "image loading")


def decoding():
    """A picture that takes a processor three seconds."""

    def decode():
        until = time.monotonic() + SLOW
        while time.monotonic() < until:
            sum(range(10000))

    with ThreadPoolExecutor(1) as executor:
        fluxguard.result(executor.submit(decode), "image loading", file="picture.png")


def first_step():
    for phase in ("load", "latent cache", "text cache", "first step"):
        with fluxguard.during(phase):
            time.sleep(SLOW / 3)
    fluxguard.step(1, total=2)


def sampling():
    with fluxguard.during("sampling"):
        for done in range(3):
            fluxguard.progress(done, 3)
            time.sleep(SLOW / 3)


def slow_save():
    """A disk that needs long for what it has taken, inside of a read that writes its file anew."""
    fsync = os.fsync

    def slow(fd):
        time.sleep(SLOW)
        fsync(fd)

    os.fsync = slow

    @fluxguard.reads
    def rewrite(path):
        with fluxguard.saved(path) as temporary, open(temporary, "wb") as file:
            file.write(b"x")

    open("image.npz", "wb").close()
    rewrite("image.npz")


def slow_upload():
    fluxguard.uploads(time.sleep)(SLOW)


def big_archive():
    """An archive that takes as long as the limit, or longer where the disk is slow."""
    import numpy as np

    np.savez_compressed("image.npz", latents=np.random.default_rng(0).standard_normal((64, 256, 256)))
    with fluxguard.reads("image.npz"):
        for _ in range(3):
            with np.load("image.npz") as npz:
                npz["latents"].sum()


def short_swaps():
    with ThreadPoolExecutor(1) as executor:
        for _ in range(5000):
            fluxguard.result(executor.submit(time.sleep, 0.0001), "block swap")


def swaps_near_the_limit():
    """Nine tenths of the limit, again and again."""
    with ThreadPoolExecutor(1) as executor:
        for _ in range(3):
            fluxguard.result(executor.submit(time.sleep, 1.8), "block swap", 2.0)


def scopes():
    for _ in range(100_000):
        with fluxguard.exit_after(LIMIT, "a short one"):
            pass


def scopes_on_threads():
    """Many threads whose scopes are open together for longer than one limit, none of them for that long."""

    def work():
        until = time.monotonic() + SLOW
        while time.monotonic() < until:
            with fluxguard.exit_after(LIMIT, "a short one"):
                time.sleep(0.05)

    threads = [threading.Thread(target=work) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def clock_that_jumps():
    """The wall clock is set an hour ahead and a day back while a swap is waited for."""
    offset = [0.0]
    now = time.time
    time.time = lambda: now() + offset[0]
    with ThreadPoolExecutor(1) as executor:
        for offset[0] in (3600.0, -86400.0, 0.0):
            fluxguard.result(executor.submit(time.sleep, 0.6), "block swap")


def suspended_swap():
    with ThreadPoolExecutor(1) as executor:
        suspend()
        fluxguard.result(executor.submit(resumed), "block swap", PATIENT)


def suspended_fatal_scope():
    """Its backing timer, which no interpreter can stop, is armed from the beginning."""
    with fluxguard.exit_after(PATIENT, "a short wait"):
        suspend()
        resumed()


def suspended_scope():
    """A cooperative deadline counts the time in which the process ran."""
    with ThreadPoolExecutor(1) as executor, fluxguard.fail_after(PATIENT, "a batch"):
        suspend()
        for work in (resumed, lambda: time.sleep(0.3)):
            fluxguard.result(executor.submit(work), "block swap", 60.0)


def loader(way):
    """Train an epoch or two from a loader of two workers, one of which is slow in the way that is asked for."""
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if way == "disk" and index == 5:
                trickle(*os.pipe())
            if way == "first" and index == 0:
                time.sleep(SLOW)
            if way == "suspended" and index == 7:
                suspend()
                resumed()
            return torch.tensor(index)

    batches = fluxguard.DataLoader(Samples(), num_workers=2, persistent_workers=True)
    for _ in range(2):
        seen = []
        if way == "suspended":
            fluxguard.limits.use(batch=PATIENT)
        for batch in batches:
            seen.append(int(batch))
            if way == "busy" and len(seen) == 2:
                time.sleep(SLOW)
        assert seen == list(range(8))
        time.sleep(SLOW if way == "idle" else 0)
        if way in ("suspended", "first"):
            break


def loader_on_a_slow_disk():
    loader("disk")


def loader_with_a_slow_first_batch():
    loader("first")


def loader_while_main_is_busy():
    loader("busy")


def loader_between_epochs():
    loader("idle")


def loader_suspended():
    loader("suspended")


def rank_that_works():
    """The second of two ranks comes to the barrier long after the limit, but beats all the time."""
    processes = [multiprocessing.get_context("fork").Process(target=rank, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def rank(number):
    import torch.distributed as dist

    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    fluxguard.train_begins()
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group", rank=number, world_size=2)
    fluxguard.barrier()
    for done in range(25 if number else 0):
        fluxguard.progress(done, 25)
        time.sleep(0.1)
    fluxguard.barrier()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "rank_that_works":
        rank_that_works()
    else:
        choose([value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"])
    print("lived", flush=True)
