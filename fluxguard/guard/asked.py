"""A supervisor asks this process to end itself: of all ends only this one tells its launcher to try again.

The request is a file in the memory where the heartbeats are: whoever looks for it never waits for a disk.
"""

from __future__ import annotations

import os

from fluxguard.guard import ending, pulse
from fluxguard.guard.ending import Verdict
from fluxguard.rundir import read_json


def look() -> None:
    """End this process if it is asked to; else return."""
    path = pulse.end_request()
    if path is None or not os.path.exists(path):
        return
    said = read_json(path)
    if said is None or said.get("pid") != os.getpid():  # meant for the rank before this one
        return
    what = f"the supervisor ends this rank, which did not go on: {said.get('why')}"
    ending.end_process(Verdict(what=what, limit=0.0, waited=0.0, said=True))
