"""Every way to start ranks wrongly (gloo): setups.py LIMIT [CASE...], all at once, in ranks of their own.

Prints what each process got, a line of JSON each: case, process (by its place in the case), error, variable, rank and
seconds; and at the end how often a log line came before and after.
"""

import json
import logging
import multiprocessing
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

from fluxguard import distributed, limits
from fluxguard.distributed.meetings import hall
from fluxguard.distributed.start import joining
from fluxguard.errors import SetupFailed
from fluxguard.guard import finishing

IMPORTED = (hall, finishing)
HOST = "127.0.0.1"
AWAY = "203.0.113.7"  # belongs to nobody (RFC 5737)
LATER = 0.4
PATIENT = 30.0
WAITS = (  # cases in which somebody waits until the limit; all others end when the ranks have met
    "no port",
    "port in use",
    "silent port",
    "one missing",
    "rank 0 missing",
    "unreachable",
    "no such name",
    "address of another",
)


def free_port():
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


def place(rank, size, port, **more):
    known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": HOST, "MASTER_PORT": port, **more}
    return {name: str(value) for name, value in known.items() if value is not None}


def cases(taken, silent):
    """Give each case its processes; a process is its environment."""
    port = [free_port() for _ in range(17)]
    return {
        "all well": [place(0, 2, port[0]), place(1, 2, port[0])],
        "group of another": [place(rank, 2, port[15], THEIRS=1) for rank in (0, 1)],
        "two rounds": [
            place(rank, 2, port[16], TORCHELASTIC_USE_AGENT_STORE="True", ROUNDS=1, **serves)
            for rank, serves in ((0, {"SERVE": 1}), (1, {}))
        ],
        "no port": [place(0, 2, port[1]), place(1, 2, None)],
        "no rank": [place(0, 2, port[2]), place(None, 2, port[2], LOCAL_RANK=1)],
        "no number": [place(0, 2, port[3]), place(1, "two", port[3])],
        "rank too high": [place(0, 2, port[4]), place(2, 2, port[4], LOCAL_RANK=1)],
        "rank 0 twice": [place(0, 2, port[5]), place(0, 2, port[5], WAIT=1)],
        "rank 1 twice": [place(0, 3, port[6]), place(1, 3, port[6]), place(1, 3, port[6])],
        "port in use": [place(0, 2, taken), place(1, 2, taken)],
        "silent port": [place(1, 2, silent)],
        "other sizes": [place(0, 2, port[7]), place(1, 3, port[7])],
        "one missing": [place(0, 3, port[8]), place(1, 3, port[8])],
        "rank 0 missing": [place(1, 2, port[9])],
        "unreachable": [place(0, 2, port[10]), place(1, 2, port[10], MASTER_ADDR=AWAY)],
        "no such name": [place(0, 2, port[11]), place(1, 2, port[11], MASTER_ADDR="nobody.invalid")],
        "debug on one": [place(0, 2, port[12]), place(1, 2, port[12], TORCH_DISTRIBUTED_DEBUG="DETAIL")],
        "address of another": [place(0, 2, port[13], MASTER_ADDR=AWAY), place(1, 2, port[13], MASTER_ADDR=AWAY)],
        "store by the launcher": [
            place(0, 2, port[14], TORCHELASTIC_USE_AGENT_STORE="True", SERVE=1),
            place(0, 2, port[14], TORCHELASTIC_USE_AGENT_STORE="True", WAIT=1),
        ],
    }


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def serve(known):
    port, size = int(known["MASTER_PORT"]), int(known["WORLD_SIZE"])
    return dist.TCPStore(HOST, port, size, True, wait_for_workers=False)


def play(case, number, known, limit, said, start):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ.update(known)
    torch.set_num_threads(1)
    lines = Lines()
    logging.getLogger("fluxguard").addHandler(lines)
    logging.getLogger("fluxguard").setLevel(logging.INFO)
    limits.use(setup=limit if case in WAITS else PATIENT)
    store = serve(known) if "SERVE" in known else None
    start.wait()  # so that no rank of a case is late because others are still forked
    if "WAIT" in known:
        time.sleep(LATER)
    got = {"case": case, "process": number}
    began = time.monotonic()
    try:
        if "THEIRS" in known:
            dist.init_process_group("gloo")
        if "ROUNDS" in known:  # what it leaves in the launcher's store is there when the next round begins
            joining.setup()
            joining.teardown()
            lines.texts.clear()
        world = joining.setup()
        tensor = torch.full((1,), float(world.rank + 1))
        dist.all_reduce(tensor)
        again = distributed.setup()
        distributed.teardown()
        distributed.teardown()
        got |= {"size": world.size, "sum": tensor.item(), "same": again is world, "left": not dist.is_initialized()}
    except SetupFailed as error:
        got |= {"error": str(error), "variable": error.variable, "rank": error.rank}
    except Exception as error:  # noqa: BLE001  (whatever it is, the test is to see it)
        got |= {"error": f"{type(error).__name__}: {error}", "variable": "?", "rank": None}
    said.put({**got, "seconds": round(time.monotonic() - began, 2), "lines": lines.texts})
    if store is not None:
        time.sleep(1)
    said.close()
    said.join_thread()
    os._exit(0)  # with a thread that is stuck in a store, as torch leaves it


def main():
    limit = float(sys.argv[1])
    only = sys.argv[2:]
    taken, silent = dist.TCPStore(HOST, 0, 1, True, wait_for_workers=False), socket.socket()
    silent.bind((HOST, 0))
    silent.listen()
    fork = multiprocessing.get_context("fork")
    players = [
        (case, number, known)
        for case, ranks in cases(taken.port, silent.getsockname()[1]).items()
        for number, known in enumerate(ranks)
        if not only or case in only
    ]
    # One after the other, because those who wait would wait for others to get their share of the processors.
    for waits in (False, True):
        wave = [player for player in players if (player[0] in WAITS) == waits]
        if wave:
            run(fork, wave, limit)


def run(fork, players, limit):
    said, start = fork.Queue(), fork.Barrier(len(players))
    processes = [fork.Process(target=play, args=(*player, limit, said, start)) for player in players]
    for process in processes:
        process.start()
    for _ in processes:
        print(json.dumps(said.get(timeout=PATIENT)), flush=True)
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
