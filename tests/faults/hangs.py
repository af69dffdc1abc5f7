"""Ways to hang, in one process and without torch: python hangs.py WAY [page]."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from told import FOR_EVER, LIMIT, choose, waiting

import fluxguard


def scope():
    """Open the scope that a user would open around what is not ours."""
    return fluxguard.exit_after(LIMIT, "a wait that is not ours")


def future():
    waiting()
    fluxguard.result(Future(), "block swap")


def stopped_meanwhile():
    """Stopped for 6 s; that is no time it waited, so the limit of 7 s passes that much later."""
    script = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 6; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    waiting()
    fluxguard.result(Future(), "block swap", 7.0)


def future_on_a_thread():
    waiting()
    thread = threading.Thread(target=fluxguard.result, args=(Future(), "block swap"))
    thread.start()
    thread.join()


def pool_at_exit():
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    fluxguard.train_ends()
    waiting()


def pool_at_exit_after_an_error():
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    fluxguard.result(ThreadPoolExecutor(1).submit(time.sleep, 0.01), "block swap")
    waiting()
    raise MemoryError("in the trainer")


def pool_shut_down():
    with ThreadPoolExecutor(1) as executor:
        executor.submit(threading.Event().wait)
        waiting()
        fluxguard.shutdown(executor, "reading")


def busy():
    with scope():
        waiting()
        while True:
            pass


def c_call():
    with scope():
        waiting()
        ctypes.CDLL(None).sleep(FOR_EVER)


def c_call_with_the_interpreter():
    with scope():
        waiting()
        ctypes.PyDLL(None).sleep(FOR_EVER)


def c_read():
    """In C, which no exception gets out of: a signal interrupts the call, and it is made again."""
    read, write = os.pipe()
    libc = ctypes.CDLL(None)

    def again(path):
        while libc.read(read, ctypes.create_string_buffer(1), 1) < 0:
            pass

    open("image.npz", "wb").close()
    waiting()
    fluxguard.reads(again)("image.npz")
    os.close(write)


def c_read_on_a_thread():
    thread = threading.Thread(target=c_read)
    thread.start()
    thread.join()


def lock_of_its_own():
    lock = threading.Lock()
    with scope(), lock:
        waiting()
        lock.acquire()


def two_locks():
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one, other):
        with one:
            both.wait()
            other.acquire()

    with scope():
        waiting()
        threads = [threading.Thread(target=take, args=pair) for pair in ((first, second), (second, first))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fork_with_a_lock():
    lock = threading.Lock()
    held = threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(FOR_EVER)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    with scope():
        waiting()
        child = os.fork()
        if not child:
            lock.acquire()  # whose holder is not here
        os.waitpid(child, 0)


def full_stdout():
    _, write = os.pipe()
    waiting()
    os.dup2(write, 1)
    with scope():
        while True:
            print("loss" * 1000)


def full_stderr():
    _, write = os.pipe()
    waiting()
    os.dup2(write, 2)
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(1))
    except BlockingIOError:
        os.set_blocking(2, True)
    fluxguard.result(Future(), "block swap")


def child_program():
    with scope():
        waiting()
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])


def setsid_program():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    future()


def setsid_fork():
    if not os.fork():
        os.setsid()
        time.sleep(60)
    future()


def grandchild():
    """A worker that was forked, and forked again; only the first is a child of the trainer."""
    if not os.fork():
        os.fork()
        time.sleep(60)
    time.sleep(0.1)
    future()


def thread_after_main():
    def hang():
        with scope():
            waiting()
            threading.Event().wait()

    threading.Thread(target=hang).start()


def end_on_a_dead_disk():
    """Where the last words would be written, a disk that does not answer."""
    os.fsync = lambda fd: time.sleep(FOR_EVER)
    future()


def end_on_a_failing_disk():
    def fails(*_):
        raise OSError(5, "Input/output error")

    os.fsync = os.rename = os.replace = fails
    future()


if __name__ == "__main__":
    choose([value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"])
