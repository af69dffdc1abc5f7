"""A supervisor in a terminal, and how it hands a run over when the terminal is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxguard.clock import SystemClock
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import order as orders
from fluxguard.supervisor import processes
from fluxguard.supervisor.ledger import Ledger, Subscriber
from fluxguard.supervisor.order import Order
from fluxguard.supervisor.ownership import owned
from fluxguard.supervisor.supervise import Outcome, Supervision

_LOG = "supervisor.log"


def supervise(order: Order, limits: Limits, *, fresh: bool, tell: Subscriber, again: Sequence[str]) -> Outcome:
    """Own the run and supervise it to its end, or until Ctrl-C, a closed terminal or SIGTERM.

    Then the run goes on: after the first two a detached supervisor takes over, started with the arguments `again`.
    Raises RunOwned and InputError.
    """
    if fresh:
        orders.start_fresh(order.run)
    order.run.create()
    leaving: list[str] = []
    with owned(order.run), _Leaving(leaving):
        if done := orders.settle_job(order, limits, fresh=fresh):
            return Outcome(True, f"nothing to do: {done}")
        ledger = Ledger(order.run.ledger, SystemClock(), (tell,))
        ledger.add("job", hardened=order.hardened, weights=str(order.trainee.weights))
        supervision = Supervision(
            run=order.run,
            ledger=ledger,
            trainee=order.trainee,
            limits=limits,
            clock=SystemClock(),
            leave_asked=lambda: bool(leaving),
        )
        outcome = supervision.to_the_end()
    if outcome.left and "SIGTERM" not in leaving:
        detached(order.run, again)
    return outcome


def detached(run: RunDir, arguments: Sequence[str], *, cwd: Path | None = None) -> int:
    """Start `fluxguard ARGUMENTS...` so that it outlives this process and its terminal; return its number.

    What it says goes to supervisor.log in the run directory.
    """
    run.create()
    log = os.open(run.root / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        argv = [sys.executable, "-m", "fluxguard", *arguments]
        return processes.detached(argv, env=dict(os.environ), cwd=cwd or Path.cwd(), output=log)
    finally:
        os.close(log)


class _Leaving:
    """Turns the signals that ask a supervisor to leave into a note, for the time of a block."""

    def __init__(self, leaving: list[str]) -> None:
        self._leaving = leaving
        self._before: dict[str, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> None:
        for name in ("SIGINT", "SIGHUP", "SIGTERM"):
            if hasattr(signal, name):
                number = getattr(signal, name)
                self._before[name] = signal.signal(number, lambda *_, name=name: self._leaving.append(name))

    def __exit__(self, *_: object) -> None:
        for name, before in self._before.items():
            signal.signal(getattr(signal, name), before)
