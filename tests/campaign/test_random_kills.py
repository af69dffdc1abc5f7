"""Many random kills in one training. `make campaign` kills 20 times; the tests do it twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fluxguard import heartbeat
from fluxguard.drill import drill, workshop
from fluxguard.rundir import RunDir
from fluxguard.supervisor import status

KILLS = int(os.environ.get("CAMPAIGN_KILLS", "2"))
SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
OUTER = 120.0 + 25.0 * KILLS


def kill_at_random(made: workshop.Workshop, supervisor: subprocess.Popen[bytes], chance: random.Random) -> int:
    """Kill the trainer at random moments of its training, KILLS times at most; return how often it was."""
    beats, kills = heartbeat.path_for(RunDir(made.output_dir).beats(), 0), 0
    last = b""
    deadline = time.monotonic() + OUTER
    while kills < KILLS and supervisor.poll() is None and time.monotonic() < deadline:
        beat = heartbeat.read(beats)
        if beat is None or beat.attempt == last or beat.phase not in ("step", "saving"):
            time.sleep(0.02)
            continue
        last = beat.attempt
        # About a state's distance on average, so that some attempts gain nothing and some much.
        time.sleep(chance.uniform(0.0, 0.7))
        try:
            psutil.Process(beat.pid).kill()
        except psutil.Error:
            continue
        kills += 1
    return kills


@pytest.mark.integration
@pytest.mark.timeout(OUTER + 60)
def test_random_kills_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    """Whenever the trainer is killed, each planned step is embodied exactly once, bit for bit."""
    for name, epochs in (("caches", 1), ("undisturbed", workshop.EPOCHS)):
        drill.train(workshop.prepare(tmp_path, hardened=False, name=name, epochs=epochs))
    made = workshop.prepare(tmp_path, name="killed")
    RunDir(made.output_dir).create()
    RunDir(made.output_dir).open_beats()
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "fluxguard", "supervise", str(made.train_sh), "--limits", str(made.limits)],
        stdout=subprocess.DEVNULL,
    )
    try:
        kills = kill_at_random(made, supervisor, random.Random(SEED))
        assert supervisor.wait(OUTER) == 0
    finally:
        supervisor.kill()
        supervisor.wait()
    seen = status.read(RunDir(made.output_dir))
    assert seen is not None
    assert (seen.state, seen.applied_steps, len(seen.incidents)) == ("finished", workshop.STEPS, kills)
    assert kills > 0
    one, other = (tmp_path / name / f"{name}.safetensors" for name in ("undisturbed", "killed"))
    assert drill.tensors(one) == drill.tensors(other)
