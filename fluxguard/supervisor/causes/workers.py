"""DataLoader workers: those that die, stop, or deliver nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxguard.launch.remedies import FEWER_WORKERS
from fluxguard.supervisor.causes.cause import Cause, Seen, Told, says, waits
from fluxguard.supervisor.causes.signatures import OUTSIDE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom


def _worker_stopped(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    stopped = evidence.usage.stopped if evidence.usage else ()
    return evidence.stopped(symptom) if stopped and set(stopped) <= evidence.workers else ()


CAUSES = (
    Cause(
        name="loader worker killed",
        words="A DataLoader worker died: {said}",
        advice="If it comes again: fewer workers (--max_data_loader_n_workers), and more RAM and shared memory.",
        origin=OUTSIDE,
        remedies=(FEWER_WORKERS,),
        shown=(
            says(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed.*",
                "RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed.",
            ),
            says(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly.*",
                "RuntimeError: DataLoader worker (pid(s) 4123) exited unexpectedly",
                echo=True,
            ),
            says(
                r"Pin memory thread exited unexpectedly.*",
                "RuntimeError: Pin memory thread exited unexpectedly",
                echo=True,
            ),
        ),
    ),
    Cause(
        name="loader worker stopped",
        words="A DataLoader worker was stopped (as by SIGSTOP), and the training waits for its batch: {said}.",
        advice="See what stops processes on this machine (a debugger, a suspending scheduler).",
        origin=OUTSIDE,
        shown=(Seen("no progress, and only loader workers are in the state 'stopped'", _worker_stopped),),
    ),
    Cause(
        name="loader worker",
        words="The step waits for a batch that no DataLoader worker delivers.",
        advice="If it comes again: use fewer workers (--max_data_loader_n_workers), and look at the disk that holds the"
        " data set.",
        remedies=(FEWER_WORKERS,),
        fixed=True,
        shown=(
            Told(
                "loader worker",
                "A DataLoader worker (process {workers}) delivered no batch for {waited:.1f} s (limit {limit:g} s)"
                " and was ended with the trainer.",
            ),
            waits(
                "a wait for a batch is open, or a stack stands in `_try_get_data`",
                r"a batch from the loader",
                "_try_get_data",
            ),
            says(
                r"^fluxguard: a batch from the loader.*did not finish within.*",
                "fluxguard: a batch from the loader did not finish within 60 s; worker process 77 is stuck; this"
                " process"
                " ends with code 75, another attempt may pass",
            ),
            says(r"DataLoader timed out after \d+ seconds", "RuntimeError: DataLoader timed out after 60 seconds"),
        ),
    ),
)
