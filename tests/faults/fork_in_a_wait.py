"""Forks inside a watched wait; the child ends its interpreter in the usual way, the parent then holds its own."""

import ctypes
import os
import sys

import fluxguard

HELD = 3600

if __name__ == "__main__":
    fluxguard.train_begins()
    with fluxguard.exit_after(float(sys.argv[1]), "a call into C"):
        child = os.fork()
        if not child:
            sys.exit(0)
        print("child ended", os.waitpid(child, 0)[1], flush=True)
        ctypes.PyDLL(None).sleep(HELD)
