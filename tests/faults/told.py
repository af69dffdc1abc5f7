"""What the programs of the table share: how one is chosen, and how it says that its wait begins."""

import sys
import time

import fluxguard

LIMIT = 1.0
"""Seconds; the wait limits that the tests set are the same."""
FOR_EVER = 3600


def waiting():
    """Say that the wait begins; the test reads the time from here."""
    print(f"waiting {time.monotonic()}", flush=True)


def choose(ways):
    """Run the function that the first argument names, in a trainer unless the second is "page"."""
    if "page" not in sys.argv:
        fluxguard.train_begins()
    {way.__name__: way for way in ways}[sys.argv[1]]()
