"""A small data-parallel training for one machine of several: `machines.py FOLDER STEPS [at=STEP:hang|at=STEP:raise]`.

It sums over all ranks at each step and goes on from the newest step that rank 0 has written into FOLDER. A fault is
for rank 0 of the first round.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from fluxguard.guard import pulse

STEP = 0.1
PATIENCE = 600.0


def main() -> None:
    """Train."""
    folder, steps, *faults = sys.argv[1:]
    state, total = Path(folder) / "state.json", int(steps)
    pulse.train_begins()
    pulse.phase("accelerator")
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    rank, world = distributed.get_rank(), distributed.get_world_size()
    begin = json.loads(state.read_text())["step"] if state.exists() else 0
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and not begin
    at, _, kind = faults[0].removeprefix("at=").partition(":") if faults else ("0", "", "")
    print(f"rank {rank} of {world} goes on from step {begin}", flush=True)
    for step in range(begin + 1, total + 1):
        distributed.all_reduce(torch.ones(1))
        if first and rank == 0 and step == int(at):
            if kind == "raise":
                raise RuntimeError("told to")
            time.sleep(PATIENCE)
        time.sleep(STEP)
        pulse.step(step, total)
        if rank == 0:
            fresh = state.with_suffix(".new")
            fresh.write_text(json.dumps({"step": step, "world": world}))
            fresh.replace(state)
    distributed.barrier()
    distributed.destroy_process_group()


main()
