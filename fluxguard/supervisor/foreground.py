"""A supervisor in a terminal, and how it hands a run over when the terminal is left."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor import admission, beats, debugging, settling
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor.dry_run import DryRun
from fluxguard.supervisor.learning import Chosen
from fluxguard.supervisor.ledger import Ledger, Subscriber
from fluxguard.supervisor.messages.posting import Postbox
from fluxguard.supervisor.order import Order
from fluxguard.supervisor.ownership import owned, owner
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.supervise import Outcome, Supervision

_log = logging.getLogger(__name__)

_LOG = "supervisor.log"
_HAND_OVER_TAKES = 10.0
_HAND_OVER_LOOK = 0.1
_HANDED_OVER = "FLUXGUARD_HANDED_OVER"
# By the place of this package, not by name: the folder we run in may hold the guard of a hardened checkout, and that is
# called fluxguard too.
_OURSELVES = (
    sys.executable,
    *(["-I"] if sys.flags.isolated else []),
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); "
    "from fluxguard.cli import main; main()",
)


def supervise(
    order: Order,
    chosen: Chosen,
    *,
    fresh: bool,
    tell: Subscriber,
    again: Sequence[str],
    postbox: Postbox | None = None,
    dry_run: bool = False,
    debug: bool = False,
) -> Outcome:
    """Own the run and supervise it to its end, or until Ctrl-C, a closed terminal or SIGTERM.

    Then the run goes on: after the first two a detached supervisor takes over, started with the arguments `again`.
    With `debug` the next attempt debugs its collectives.
    Raises RunOwned and InputError.
    """
    try:
        order.run.create()
    except OSError as error:
        raise InputError(order.run.output_dir, f"cannot be the output folder ({error.strerror})") from None
    leaving: list[str] = []
    with owned(order.run), _Leaving(leaving):
        if stopped := _stopped_meanwhile(order.run):
            return Outcome(False, stopped)
        if fresh:
            settling.start_fresh(order.run)
        _forget_old_request(order.run)
        for note in () if fresh else admission.check(order.run):
            _log.warning("%s", note)
        if done := settling.settle_job(order, chosen, fresh=fresh, arguments=again):
            return Outcome(True, f"nothing to do: {done}")
        if debug:
            debugging.ask(order.run)
        ledger = Ledger(order.run.ledger, SystemClock(), (tell, *([postbox.tell] if postbox else ())))
        ledger.add(
            "job",
            hardened=order.hardened,
            weights=str(order.trainee.weights or ""),
            foreign=order.trainee.foreign,
            goes_on=order.trainee.goes_on,
            command=settling.digest(order),
            accumulation=order.trainee.accumulation,
            notifies=postbox is not None,
            dry_run=dry_run,
        )
        supervision = (DryRun if dry_run else Supervision)(
            run=order.run,
            ledger=ledger,
            trainee=order.trainee,
            chosen=chosen,
            clock=SystemClock(),
            leave_asked=lambda: bool(leaving),
        )
        outcome = supervision.to_the_end()
        if not outcome.left:
            beats.put_away(order.run)
    if outcome.left and "SIGTERM" not in leaving:
        _hand_over(order.run, again)
    return outcome


def _hand_over(run: RunDir, again: Sequence[str]) -> None:
    """Start the next supervisor, and leave when it has taken over."""
    detached(run, again, handed_over=True)
    clock = SystemClock()
    until = clock.monotonic() + _HAND_OVER_TAKES
    while owner(run) is None and clock.monotonic() < until:
        clock.sleep(_HAND_OVER_LOOK)


def log_of(run: RunDir) -> Path:
    """Return where a detached supervisor writes what it says."""
    return run.root / _LOG


def _stopped_meanwhile(run: RunDir) -> str:
    """Return why a run was stopped between one supervisor's leaving and the next one's coming, or an empty text."""
    handed_over = os.environ.pop(_HANDED_OVER, "")
    last = ledgers.newest(ledgers.read(run.ledger), "stopped")
    return str(last.values["reason"]) if handed_over and last and last.at > float(handed_over) else ""


def _forget_old_request(run: RunDir) -> None:
    """Remove a request to stop that was meant for a supervisor before this one."""
    with contextlib.suppress(OSError):
        if run.stop.stat().st_mtime < run.owner.stat().st_mtime:
            run.stop.unlink()


def detached(run: RunDir, arguments: Sequence[str], *, cwd: Path | None = None, handed_over: bool = False) -> int:
    """Start `fluxguard ARGUMENTS...` so that it outlives this process and its terminal; return its number.

    What it says goes to supervisor.log in the run directory.
    """
    run.create()
    log = os.open(log_of(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        argv = [*_OURSELVES, *arguments]
        note = {_HANDED_OVER: str(time.time())} if handed_over else {}
        return processes.detached(argv, env={**os.environ, **note}, cwd=cwd or Path.cwd(), output=log)
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
