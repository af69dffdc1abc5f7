"""A trainer with a worker that has a child in a session of its own, and a service that cleans up: family.py METHOD."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import fluxguard

LONG, POLL = 600, 0.02
SLEEPS = f"import time; time.sleep({LONG})"
CLEANS = f"""
import signal, sys, time

def clean(*_):
    print("service cleaned up", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, clean)
open("ready", "w").close()
time.sleep({LONG})
"""


def work(there: object) -> None:
    """Start a child that leaves the session, and sleep."""
    subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True)
    there.set()  # type: ignore[attr-defined]
    time.sleep(LONG)


def main() -> None:
    context = multiprocessing.get_context(sys.argv[1])
    there = context.Event()
    context.Process(target=work, args=(there,)).start()  # type: ignore[attr-defined]
    there.wait(20)
    subprocess.Popen([sys.executable, "-c", CLEANS])
    while not Path("ready").exists():
        time.sleep(POLL)
    print("all there", flush=True)
    fluxguard.train_begins()
    with fluxguard.exit_after(1, "a wait that is not ours"):
        print("stuck now", flush=True)
        time.sleep(LONG)


if __name__ == "__main__":
    main()
