"""An alarm of somebody else in the middle of a guarded read: python foreign_alarm.py handled|default.

handled: its handler runs on time, and the read goes on. default: it ends the process, as it would have without us.
"""

import os
import signal
import sys
import threading

import fluxguard

PATH = "image.npz"
DUE = 0.3


@fluxguard.reads
def load(path, fd):
    return len(os.read(fd, 1))


if __name__ == "__main__":
    open(PATH, "wb").close()
    receive, send = os.pipe()
    if sys.argv[1] == "handled":
        signal.signal(signal.SIGALRM, lambda *_: print("rang", flush=True))
    signal.setitimer(signal.ITIMER_REAL, DUE)
    threading.Timer(2 * DUE, os.write, args=(send, b"x")).start()
    print("read", load(PATH, receive), flush=True)
