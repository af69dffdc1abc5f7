"""Outlives an exit_after by far, in a process that never said that it trains."""

import time

import fluxguard

if __name__ == "__main__":
    with fluxguard.exit_after(0.2, "a wait in a page"):
        time.sleep(2)
    print("lived", flush=True)
