"""The hangs of several ranks (gloo, CPU): python hangs.py WORLD guarded|unguarded LIMIT CASE... (all cases at once).

Each rank is a process of its own, forked from this one. It ends as one of multiprocessing does; those of a case with
"!" behind its name end as an interpreter does, which takes a second of work. Writes one line of JSON for each rank
that comes to an outcome, and one for each that has ended; whoever is left is killed after HARD seconds.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from multiprocessing import util

import torch
import torch.distributed as dist

from fluxguard import distributed, limits
from fluxguard.errors import RanksMissing

HARD = 40.0
WORLD, GUARDED, LIMIT, CASES = int(sys.argv[1]), sys.argv[2] == "guarded", float(sys.argv[3]), sys.argv[4:]
EPOCHS, STOP = 4, 2
NEVER = {("stopped", 1), ("stopped_host", 0), ("cached", 1)}  # the ranks that do not end
START = 30.0  # what a busy machine may need to connect the ranks, or to bring them to a place where they disagree
GROUP = []  # whose collectives torch gives up soon, so that what hangs here has an end


def gathered(value):
    """What a metric does in its compute: gather the state of every rank."""
    states = [torch.zeros(1) for _ in range(WORLD)]
    dist.all_gather(states, torch.tensor([float(value)]), group=GROUP[0])
    return sum(state.item() for state in states)


def fid(rank):
    """Rank 0 alone computes the FID, which gathers; the others are at the end of the epoch."""
    if not GUARDED:
        if rank == 0:
            gathered(rank)
        dist.barrier(GROUP[0])
    else:
        if rank == 0:
            with distributed.collective("fid.compute"):
                gathered(rank)
        distributed.barrier("end of epoch")


def fid_on_all(rank):
    """The way out: all compute, rank 0 decides."""
    with distributed.collective("fid.compute"):
        value = gathered(rank)
    return distributed.decide(lambda: value, "best fid")


def mismatch(rank):
    """The ranks are at different barriers."""
    if not GUARDED:
        if rank == 0:
            dist.barrier(GROUP[0])
        gathered(rank)
        time.sleep(HARD)  # the others train on, and rank 0 is one barrier behind
    distributed.barrier("after saving" if rank == 0 else "end of epoch", limit=START)


def early_stop(rank):
    """Rank 0 alone decides to stop, and leaves the loop."""
    for epoch in range(EPOCHS):
        if rank == 0 and epoch == STOP:
            break
        if GUARDED:
            distributed.barrier("end of epoch", epoch=epoch, limit=START)
        else:
            gathered(rank)
    if GUARDED:
        distributed.barrier("end", limit=START)
    else:
        dist.barrier(GROUP[0])
        time.sleep(HARD)


def early_stop_agreed(rank):
    """The way out: one decision for all."""
    for epoch in range(EPOCHS):
        if distributed.decide(lambda epoch=epoch: epoch == STOP, "stop early", epoch=epoch):
            return epoch
        distributed.barrier("end of epoch", epoch=epoch)
    return None


def killed(rank):
    """Rank 1 is killed while it caches; its worker lives on and holds its connections open."""
    if rank == 1:
        if os.fork() == 0:
            time.sleep((2 if GUARDED else 4) * LIMIT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    if GUARDED:
        distributed.barrier("cached")
    else:
        dist.barrier(GROUP[0])


def failed(rank):
    """Rank 1 fails in what each must do for itself: nobody waits for it."""
    with distributed.on_main("cache") as main:
        if main:
            raise OSError("the disk is full")


def stopped(rank, which=1):
    """A rank is stopped."""
    if rank == which:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)
    if GUARDED:
        distributed.barrier("end of epoch")
    else:
        dist.barrier(GROUP[0])


def stopped_host(rank):
    """Rank 0 is stopped, in whose process the store is."""
    stopped(rank, 0)


def unpicklable(rank):
    """Rank 0 sends what cannot be sent: it fails before the broadcast."""
    if GUARDED:
        return distributed.decide(lambda: [lambda: 0], "schedule")
    told = [lambda: 0] if rank == 0 else [None]
    try:
        dist.broadcast_object_list(told, 0, GROUP[0])
    except AttributeError:
        time.sleep(3 * LIMIT)  # a traceback that others wait behind: its process is still there
    return None


def cached(rank):
    """One rank has the value already, and does not join the others."""
    if rank == 1:
        time.sleep(HARD)
    if not GUARDED:
        return gathered(rank)
    with distributed.collective("accuracy"):
        return gathered(rank)


def never_again(rank):
    """A rank does not come; who waited for it is not made to wait again, nor is who comes too late."""
    if rank == 1:
        time.sleep(LIMIT + 0.8)
    try:
        distributed.barrier("first")
    except RanksMissing:
        began = time.monotonic()
        with contextlib.suppress(RanksMissing):
            distributed.barrier("second")
        told(case="never_again", rank=rank, again=time.monotonic() - began)
        if rank == 0:
            time.sleep(1.5)  # the store lives until the late one has asked
        raise


def ok(rank):
    """Nothing is wrong."""
    for step in range(70):
        distributed.barrier("step", step=step)
    with distributed.on_main("save"):
        pass
    return distributed.decide(lambda: "go on", "what next")


def ahead(rank):
    """A rank is at another step."""
    distributed.barrier("end of epoch", epoch=1, step=100 + (rank == WORLD - 1), limit=START)


def told(**said):
    os.write(1, (json.dumps(said) + "\n").encode())


def run(case, rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=START))
    GROUP.append(dist.new_group(timeout=timedelta(seconds=LIMIT if GUARDED else 2.5 * LIMIT)))
    if GUARDED:
        distributed.barrier("begin", limit=START)
    limits.use(barrier=LIMIT)
    dist.barrier()
    time.sleep(0.1)
    began = time.monotonic()
    said = {"case": case, "rank": rank, "error": "", "text": "", "ranks": [], "value": None}
    try:
        said["value"] = globals()[case](rank)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
        said |= {"error": type(error).__name__, "text": str(error), "ranks": list(getattr(error, "ranks", ()))}
    told(**said, seconds=round(time.monotonic() - began, 3), at=time.monotonic())
    return 1 if said["error"] else 0


def free_ports():
    """Return as many ports as there are cases, no two of them the same."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in CASES]
        for one in free:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in free]


def reap(ranks):
    """Tell of the ranks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            case, rank = ranks.pop(ended[0])
            told(case=case, rank=rank, code=os.waitstatus_to_exitcode(ended[1]), ended=time.monotonic())


def main():
    ranks = {}
    gc.freeze()
    for case, port in zip(CASES, free_ports(), strict=True):
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                code = run(case.rstrip("!"), rank, port)
                if case == "stopped_host!":  # whoever is stuck in its store comes back in the midst of the end
                    host = min(one for one, (name, _) in ranks.items() if name == "stopped_host")
                    util.Finalize(None, os.kill, (host, signal.SIGKILL), exitpriority=0)
                if case.endswith("!"):
                    return code
                util._exit_function()
                os._exit(code)
            ranks[pid] = case.rstrip("!"), rank
            reap(ranks)
    until = time.monotonic() + HARD
    while ranks and time.monotonic() < until:
        reap(ranks)
        if NEVER.issuperset(ranks.values()):
            break
        time.sleep(0.01)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
