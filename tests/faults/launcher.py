"""A launcher, as accelerate's: it starts the trainer that its words name, and what leaves a tree in every way.

A worker that is stopped, a grandchild in a session of its own, one whose environment says nothing. LAUNCHER_FAMILY
names the file that gets their numbers; without it only the trainer is started.
"""

import json
import os
import signal
import subprocess
import sys
import time

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
FORKS = f"""
import subprocess
quiet = subprocess.DEVNULL
print(subprocess.Popen({SLEEPS!r}, env={{}}, stderr=quiet, stdout=quiet).pid, flush=True)
"""


def family():
    stopped = subprocess.Popen(SLEEPS)
    own_session = subprocess.Popen(SLEEPS, start_new_session=True)
    orphan = subprocess.run([sys.executable, "-c", FORKS], env={}, capture_output=True, text=True, check=True)
    os.kill(stopped.pid, signal.SIGSTOP)
    return {"stopped": stopped.pid, "session": own_session.pid, "nameless": int(orphan.stdout)}


if __name__ == "__main__":
    trainer = subprocess.Popen([sys.executable, *sys.argv[1:]])
    told = {"launcher": os.getpid(), "trainer": trainer.pid}
    path = os.environ.get("LAUNCHER_FAMILY")
    if path:
        told.update(family())
        with open(f"{path}.new", "w") as file:
            json.dump(told, file)
        os.rename(f"{path}.new", path)
    while trainer.poll() is None:
        time.sleep(0.02)
    sys.exit(trainer.returncode)
