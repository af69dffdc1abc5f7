"""A training whose loss is no number from step 6 on: lost_loss.py FOLDER. It saves a state at every second step."""

import math
import sys
from pathlib import Path

import fluxguard
from fluxguard.guard import losses

if __name__ == "__main__":
    fluxguard.train_begins()
    for step in range(1, 100):
        if step % 2 == 0:
            state = Path(sys.argv[1]) / f"run-step{step:08d}-state"
            state.mkdir()
            losses.saved(state)
        loss = 0.5 if step < 6 else math.nan
        fluxguard.check_loss(loss, step)
        fluxguard.step(step, total=99, epoch=1, loss=loss)
    print("trained on", flush=True)
