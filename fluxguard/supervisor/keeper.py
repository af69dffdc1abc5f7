"""Starts one attempt, waits for it, and writes down how it ended.

Run by file name in isolated mode (`python -I -S keeper.py SPAWN_JSON`): it imports only the standard library, so that
it stays small and starts at once. It lives in its own session and outlives its supervisor; on Linux it inherits the
trainer's orphans, so that none of them can leave the tree unseen.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_VERSION = 1
_WRITE_TRIES = 600
_WRITE_PAUSE = 1.0
_GONE_TRIES = 3
_RESERVED = 512


def main(spawn_path: str) -> None:
    """Keep the attempt that `spawn_path` describes until nothing of it is left."""
    with open(spawn_path, encoding="utf-8") as file:
        spawn = json.load(file)
    _forget(spawn_path)
    _stay()
    _reserve(spawn["exit"])
    try:
        log = os.open(spawn["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        trainer = subprocess.Popen(
            spawn["argv"], cwd=spawn["cwd"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    except OSError as error:
        _write(spawn["exit"], {"code": None, "signal": None, "error": str(error), "at": time.time()})
        return
    os.close(log)
    _write(spawn["keeper"], {"keeper": os.getpid(), "trainer": trainer.pid, "at": time.time()})
    code = trainer.wait() if os.name == "nt" else _wait_posix(trainer.pid)
    _write(
        spawn["exit"],
        {"code": code if code >= 0 else None, "signal": -code if code < 0 else None, "error": None, "at": time.time()},
    )
    _reap_orphans()


def _forget(path: str) -> None:
    """Remove the command line that was read: it may hold what must not be kept."""
    try:
        os.unlink(path)
    except OSError:
        return  # the supervisor tries again


def _stay() -> None:
    """Outlive terminals and the signals meant for the trainer; inherit its orphans where the platform can."""
    for name in ("SIGHUP", "SIGINT", "SIGTERM"):
        if hasattr(signal, name):
            # Not SIG_IGN, which the trainer would inherit.
            signal.signal(getattr(signal, name), lambda *_: None)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_posix(pid: int) -> int:
    """Return the trainer's code (negative: its signal), burying on the way whatever it orphaned."""
    while True:
        gone, status = os.wait()
        if gone == pid:
            return os.waitstatus_to_exitcode(status)


def _reap_orphans() -> None:
    """Stay as the parent of what the trainer left behind until the supervisor has ended it."""
    while os.name != "nt":
        try:
            os.wait()
        except ChildProcessError:
            return


def _write(path: str, values: dict[str, object]) -> None:
    """Write a file whole, trying for a while: a disk may be full just now, and nobody else knows what we know.

    A folder that was removed is made again where the trainer made the one above it again; else that is soon given up.
    """
    gone = 0
    for _ in range(_WRITE_TRIES):
        try:
            _write_once(path, values)
        except FileNotFoundError:
            gone += 1
            if gone > _GONE_TRIES:
                return
            with contextlib.suppress(OSError):
                os.mkdir(os.path.dirname(path), 0o700)
        except OSError:
            gone = 0
        else:
            return
        time.sleep(_WRITE_PAUSE)


def _reserve(path: str) -> None:
    """Take the room for a file now: when a disk is full, how the trainer ended must still be written."""
    try:
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(" " * _RESERVED)
    except OSError:
        return


def _write_once(path: str, values: dict[str, object]) -> None:
    fresh = f"{path}.{os.getpid()}"
    text = json.dumps({"version": _VERSION, **values}).ljust(_RESERVED)
    with open(fresh, "r+" if os.path.exists(fresh) else "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


if __name__ == "__main__":
    main(sys.argv[1])
