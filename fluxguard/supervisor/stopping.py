"""Stopping a run from outside: by asking its supervisor, or in its place when it has none."""

from __future__ import annotations

from fluxguard.clock import Clock
from fluxguard.errors import InputError
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import processes, status
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.ownership import owned, owner
from fluxguard.supervisor.record import planned, stopped

_LOOK = 0.1


def stop(run: RunDir, clock: Clock, limits: Limits) -> str:
    """Stop a run and return why and how it can go on.

    Raises InputError when there is no run, or when its supervisor does not do it within the time of its kill ladder.
    """
    seen = status.read(run)
    if seen is None:
        raise InputError(run.output_dir, "holds no run of fluxguard")
    if owner(run) is None:
        if seen.state == "finished":
            return seen.reason
        with owned(run):
            return _in_its_place(run, clock, limits)
    write_json(run.stop, {"at": clock.wall()})
    watch = limits.watch
    ladder = watch.grace + watch.reap + 2 * watch.evidence + watch.settle
    deadline = clock.monotonic() + ladder
    while clock.monotonic() < deadline:
        clock.sleep(_LOOK)
        if (now := status.read(run)) and now.phase == "saving":
            deadline = clock.monotonic() + ladder  # its supervisor lets the save end first
        if owner(run) is None or not run.stop.exists():
            after = status.read(run)
            return after.reason if after else ""
    raise InputError(run.output_dir, "its supervisor did not stop it in time; try again, or end its processes")


def _in_its_place(run: RunDir, clock: Clock, limits: Limits) -> str:
    ledger = Ledger(run.ledger, clock)
    attempt = attempts.last(ledger.events)
    if attempt is not None and not attempts.closed(ledger.events, attempt.uuid):
        processes.end(attempt.processes, clock, grace=limits.watch.grace, reap=limits.watch.reap)
        ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=0)
    return stopped(run, ledger, planned(ledger, 1), "stopped on request")
