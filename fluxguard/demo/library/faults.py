"""The one thing no real trainer has: a way for a test to ask for a wait that never ends, or for slow steps."""

import os
import sys
import threading
import time


def stuck_if_asked(name: str) -> None:
    """Block for ever if a test left a file of this name in MINIATURE_FAULTS; the file is used up."""
    folder = os.environ.get("MINIATURE_FAULTS")
    if not folder:
        return
    try:
        os.remove(os.path.join(folder, name))
    except FileNotFoundError:  # not asked, or another worker was faster
        return
    sys.stderr.write(f"\nminiature: stuck on purpose: {name} (pid {os.getpid()})\n")
    sys.stderr.flush()
    threading.Event().wait()


def sleep_if_asked() -> None:
    """Make every step as slow as MINIATURE_STEP_SLEEP seconds, so that a test can kill in the middle of one."""
    seconds = float(os.environ.get("MINIATURE_STEP_SLEEP") or 0)
    if seconds > 0:
        time.sleep(seconds)
