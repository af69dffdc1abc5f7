"""A supervisor that is killed at one point of its loop: POINT WHEN NTH, then the arguments of fluxguard.

POINT is a kind of ledger event (`ledger.decision`) or a name in POINTS; WHEN is before, after or torn (half a line of
the ledger is written). It is SIGKILL, so nothing of it cleans up.
"""

from __future__ import annotations

import os
import signal
import sys

import psutil

from fluxguard.supervisor import attempt, finish, setback, supervise
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.incidents import evidence, incident
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.sensors import Sensors

POINTS = {
    "spawn file": (attempt, "write_json"),
    "keeper": (processes, "detached"),
    "look": (Sensors, "look"),
    "evidence": (evidence, "take"),
    "SIGTERM": (processes, "_terminate"),
    "SIGKILL": (psutil.Process, "kill"),
    "ladder": (processes, "end"),
    "report": (incident, "write"),
    "judgement": (setback, "judge"),
    "seal": (states, "seal"),
    "choice": (supervise.restart, "choose"),
    "backoff": (supervise.Supervision, "_rest"),
    "finish": (finish, "judge"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, when: str, nth: int) -> None:
    """Let the process die before or after the nth call."""
    calls = [0]
    kind = point.removeprefix("ledger.")
    owner, name = POINTS[point] if kind == point else (Ledger, "_append" if when == "torn" else "add")
    original = getattr(owner, name)

    def armed(*args: object, **values: object) -> object:
        meant = kind == point or kind == args[1] or (when == "torn" and f'"event": "{kind}"'.encode() in args[1])
        calls[0] += meant
        now = meant and calls[0] == nth
        if now and when == "torn":
            fd = os.open(args[0]._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, args[1][: len(args[1]) // 2])
            die()
        if now and when == "before":
            die()
        answer = original(*args, **values)
        if now:
            die()
        return answer

    setattr(owner, name, armed)


if __name__ == "__main__":
    arm(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    del sys.argv[1:4]
    from fluxguard.cli import main

    main()
