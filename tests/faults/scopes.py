"""Scopes of exit_after in every company: python scopes.py WAY."""

import multiprocessing
import os
import signal
import threading
import time

from told import FOR_EVER, LIMIT, choose, waiting

import fluxguard

SHORT = 0.3
LONG = 60.0
BEYOND = SHORT + 2.0
"""A scope that was left open would have ended the process by then, its backing timer of 1 s included."""


def inner_longer():
    with fluxguard.exit_after(LIMIT, "the outer one"):
        waiting()
        with fluxguard.exit_after(LONG, "the inner one"):
            time.sleep(FOR_EVER)


def inner_shorter():
    with fluxguard.exit_after(LONG, "the outer one"):
        waiting()
        with fluxguard.exit_after(LIMIT, "the inner one"):
            time.sleep(FOR_EVER)


def inner_over():
    with fluxguard.exit_after(LIMIT, "the outer one"):
        waiting()
        for _ in range(100):
            with fluxguard.exit_after(SHORT, "the inner one"):
                pass
        time.sleep(FOR_EVER)


def outer_kept():
    """A cooperative scope inside does not take the place of a fatal one."""
    with fluxguard.exit_after(LIMIT, "the outer one"):
        waiting()
        with fluxguard.fail_after(LONG, "the inner one"):
            time.sleep(FOR_EVER)


def body_raises():
    for _ in range(2):
        try:
            with fluxguard.exit_after(SHORT, "the outer one"), fluxguard.exit_after(SHORT, "the inner one"):
                raise ValueError("in the body")
        except ValueError:
            pass
    waiting()
    time.sleep(BEYOND)
    timer = signal.getitimer(signal.ITIMER_REAL) if hasattr(signal, "getitimer") else (0.0, 0.0)
    print("lived", timer, flush=True)


def interrupted():
    """Ctrl-C in a scope: it is left like any other block."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with `&` ignore it
    try:
        with fluxguard.exit_after(LIMIT, "a wait that is interrupted"):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(FOR_EVER)
    except KeyboardInterrupt:
        pass
    waiting()
    time.sleep(BEYOND)
    print("lived", flush=True)


def terminated():
    with fluxguard.exit_after(LONG, "a wait that is ended from outside"):
        waiting()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(FOR_EVER)


def signals():
    """Handlers of the trainer's own, a timer of its own among them."""
    seen = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, lambda number, _: seen.append(number))
    with fluxguard.exit_after(LIMIT, "a wait in which signals come"):
        waiting()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        while len(seen) < 4:
            time.sleep(0.01)
        print("signals", len(seen), flush=True)
        time.sleep(FOR_EVER)


def child_lives_on():
    """A forked child has no part in the scope of its parent, which is over in time."""
    with fluxguard.exit_after(LIMIT, "a fork"):
        child = os.fork()
        if not child:
            time.sleep(LIMIT + 1.5)
            print("child lived", flush=True)
            os._exit(0)
    waiting()
    print("child ended", os.waitpid(child, 0)[1], flush=True)


def spawn():
    with fluxguard.exit_after(LIMIT, "a spawned process"):
        waiting()
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(FOR_EVER,))
        process.start()
        process.join()


def threads():
    """Twenty threads open and close scopes all the time; the one that is stuck is the one that is named."""

    def work():
        while True:
            with fluxguard.exit_after(LIMIT, "a short one"):
                time.sleep(0.01)

    def stick():
        with fluxguard.exit_after(LIMIT, "the stuck one"):
            waiting()
            threading.Event().wait()

    for _ in range(20):
        threading.Thread(target=work, daemon=True).start()
    thread = threading.Thread(target=stick)
    thread.start()
    thread.join()


if __name__ == "__main__":
    choose([value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"])
