"""A trainer that fluxguard does not know, for docs/watching.md: it hangs once, in step 12, and is healthy afterwards.

python train.py FOLDER
"""

import sys
import time
from pathlib import Path

STEPS = 20
HANGS = 12

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
mark = folder / "hung-once"
print("weights are loaded", flush=True)
for step in range(1, STEPS + 1):
    if step == HANGS and not mark.exists():
        mark.touch()
        time.sleep(3600)
    time.sleep(0.1)
    print(f"update {step} of {STEPS}, objective {1 / step:.4f}", flush=True)
print("all is written", flush=True)
