"""Stopping a run from outside: by asking its supervisor, or in its place when it has none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fluxguard import limits as limits_file
from fluxguard.clock import Clock
from fluxguard.errors import FluxguardError, InputError
from fluxguard.limits import Limits, WatchLimits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import admission, beats, record
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.detecting.observation import Observation
from fluxguard.supervisor.ledger import Ledger, newest, read
from fluxguard.supervisor.ownership import elsewhere, owned, owner
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.sensors import Sensors
from fluxguard.supervisor.showing import status

_LOOK = 0.1
_SAVING = "saving"
_SEEN_THERE = 60.0
"""So long a machine may keep believing that a file of a shared folder is not there."""


def stop(run: RunDir, clock: Clock) -> str:
    """Stop a run and return why and how it can go on; a finished one is left as it is.

    Raises InputError when there is no run, or when its supervisor does not do it within the time of its kill ladder.
    """
    seen = status.read(run)
    if seen is None:
        raise InputError(run.output_dir, "holds no run of fluxguard")
    admission.refuse_newer(run)
    admission.refuse_copy(run)
    watch = _limits(run).watch
    if owner(run) is not None:
        return _by_its_supervisor(run, clock, watch)
    if elsewhere(run) is not None:
        return _by_its_supervisor(run, clock, watch, there=_SEEN_THERE)
    if seen.state == "finished":
        return seen.reason
    with owned(run):
        return _in_its_place(run, clock, watch)


def stop_all(runs: Sequence[RunDir], clock: Clock) -> list[tuple[RunDir, str | FluxguardError]]:
    """Stop runs at the same time, as those of several machines: what `stop` returns or raises, of each."""

    def one(run: RunDir) -> str | FluxguardError:
        try:
            return stop(run, clock)
        except FluxguardError as error:
            return error

    with ThreadPoolExecutor(max_workers=len(runs)) as pool:
        return list(zip(runs, pool.map(one, runs), strict=True))


def _after_the_save(run: RunDir, attempt: attempts.Attempt, seen: Observation, clock: Clock) -> Observation:
    """Return what is to be seen when a save that goes on has ended, or has lasted as long as one may."""
    ceiling = _limits(run).for_phase(_SAVING).ceiling
    sensors, until = Sensors(run, attempt, clock), clock.monotonic() + (ceiling or 0.0)
    while seen.phase == _SAVING and seen.exit is None and (ceiling is None or clock.monotonic() < until):
        clock.sleep(_LOOK)
        seen = sensors.look()
    return seen


def _limits(run: RunDir) -> Limits:
    try:
        return limits_file.read(run.limits)
    except (OSError, InputError):
        return Limits()


def _by_its_supervisor(run: RunDir, clock: Clock, watch: WatchLimits, there: float = 0.0) -> str:
    """Ask the supervisor of a run, which takes `there` seconds longer to see that from another machine."""
    before = len(read(run.ledger))
    write_json(run.stop, {"at": clock.wall()})
    ladder = watch.grace + watch.reap + 2 * watch.evidence + watch.settle + there
    deadline = clock.monotonic() + ladder
    while clock.monotonic() < deadline:
        clock.sleep(_LOOK)
        if ended := newest(read(run.ledger)[before:], "stopped", "finished"):
            return str(ended.values["reason"])
        if owner(run) is None and elsewhere(run) is None:
            with owned(run):
                return _in_its_place(run, clock, watch)
        if (now := status.read(run)) and now.phase == "saving":
            deadline = clock.monotonic() + ladder  # its supervisor lets the save end first
    raise InputError(run.output_dir, "its supervisor did not stop it in time; try again, or end its processes")


def _in_its_place(run: RunDir, clock: Clock, watch: WatchLimits) -> str:
    ledger = Ledger(run.ledger, clock)
    plan = record.planned(ledger, record.accumulation(ledger.events))
    attempt = attempts.last(run, ledger.events)
    if attempt is not None and not attempts.closed(ledger.events, attempt.uuid):
        seen = Sensors(run, attempt, clock).look()
        if seen.exit is not None and seen.exit.code == 0:
            return "the training has ended by itself; `fluxguard supervise` verifies it"
        seen = _after_the_save(run, attempt, seen, clock)
        processes.end(attempt.processes, clock, grace=watch.grace, reap=watch.reap)
        attempts.forget(run, attempt.uuid)
        plan = states.with_plan(
            plan,
            planned_steps=seen.planned,
            batches_per_epoch=seen.shown.batches_per_epoch,
        )
        step = attempt.true_step(seen.beat, seen.shown, hardened=record.hardened(ledger.events))
        ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=step)
    reason = record.stopped(run, ledger, plan, "stopped on request")
    beats.put_away(run)
    return reason
