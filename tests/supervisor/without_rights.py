"""Collects the evidence of a program, RUN_DIR PROGRAM..., as a supervisor without special rights; says it as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from fluxguard.clock import SystemClock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import ATTEMPT_VARIABLE, RUN_VARIABLE, RunDir
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.incidents import evidence
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.sensors import Sensors

MARK = "0b9f7c1e-0000-4000-8000-000000000001"


def main(run: RunDir, words: list[str]) -> None:
    """Start the program, wait until it hangs, collect, end it."""
    clock, me = SystemClock(), Identity.of(os.getpid())
    attempt = Attempt(uuid=MARK, number=1, start_step=0, log_from=0, at=0.0, keeper=me)
    env = {**os.environ, RUN_VARIABLE: str(run.root), ATTEMPT_VARIABLE: MARK}
    with subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert "waiting" in program.stdout.readline()
        time.sleep(0.3)  # into the call
        history = History.begun(Sensors(run, attempt, clock).look(sample=True))
        symptom = Symptom(kind="idle", phase="step", since=1.0)
        outside = dict(processes.stacks([program.pid], clock, until=clock.monotonic() + 10))
        began = clock.monotonic()
        found = evidence.collect(run, attempt, symptom, history, clock, WatchLimits(settle=0.2))
        took = clock.monotonic() - began
        seen: dict[str, object] = {"outside": outside[program.pid], "stacks": found.stacks[program.pid]}
        seen["others"] = [stack for pid, stack in found.stacks.items() if pid != program.pid]
        sys.stdout.write(json.dumps({**seen, "alive": program.poll() is None, "took": took}) + "\n")
        for identity in attempt.processes():
            os.kill(identity.pid, 9)


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])), sys.argv[2:])
