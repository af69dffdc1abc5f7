"""The Python stacks of what lives of an attempt: read from outside, or written by the guard where that is forbidden."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import UNSEEN, Identity
from fluxguard.supervisor.sensing.processes import NO_STACKS

_DUMP_TAKES = 0.5
_DUMP_LOOK = 0.05
_MOST_PROCESSES = 12


def twice(
    run: RunDir,
    attempt: Attempt,
    living: Sequence[Identity],
    clock: Clock,
    limits: WatchLimits,
    found: dict[int, str],
) -> None:
    """Put the stacks of each process into `found` as they come: taken twice, `settle` seconds apart.

    Two equal ones prove that nothing moves. Takes `evidence` seconds at most, and as long again as the two lie apart.
    """
    living = living[:_MOST_PROCESSES]
    if not living:
        return
    guarded = _guarded(run, attempt, living)
    until = clock.monotonic() + limits.evidence
    found.update(_once(living, guarded, clock, until))
    clock.sleep(limits.settle)
    for pid, again in _once(living, guarded, clock, until + limits.settle):
        moved = "the same again" if again == found[pid] else f"then:\n{again}"
        found[pid] = f"{found[pid]}\n{limits.settle:g} s later {moved}"


def _once(
    living: Sequence[Identity], guarded: Mapping[int, _Guarded], clock: Clock, until: float
) -> Iterator[tuple[int, str]]:
    for pid, stack in processes.stacks([identity.pid for identity in living], clock, until=until):
        shown = stack
        if stack.startswith(NO_STACKS) and pid in guarded and (guarded[pid].trains or clock.monotonic() < until):
            shown = guarded[pid].asked(clock) or stack
        yield pid, shown


@dataclass(frozen=True)
class _Guarded:
    """A process in which the guard writes the stacks when it is asked by a signal."""

    process: Identity
    file: Path
    trains: bool
    """Whether it is a trainer, and not one of the workers that it has forked."""

    def asked(self, clock: Clock) -> str:
        """Return the stacks that the guard writes now; it needs no rights and no interpreter lock. Empty for none."""
        process, before = self.process.process(), self._written()
        if process is None or not _is_caught(self.process.pid):
            return ""
        with contextlib.suppress(*UNSEEN):
            process.send_signal(signal.SIGUSR1)
        until = clock.monotonic() + _DUMP_TAKES
        size = len(before)
        while clock.monotonic() < until:
            clock.sleep(_DUMP_LOOK)
            last, size = size, len(self._written())
            if size == last > len(before):
                break
        return self._written()[len(before) :].decode("utf-8", "replace")

    def _written(self) -> bytes:
        try:
            return self.file.read_bytes()
        except OSError:
            return b""


def _guarded(run: RunDir, attempt: Attempt, living: Sequence[Identity]) -> dict[int, _Guarded]:
    """Return the processes that can be asked: the trainers of all ranks, and what they have forked."""
    if not hasattr(signal, "SIGUSR1"):
        return {}
    ranks = {beat.pid: beat.rank for beat in attempt.beats(run)}
    workers = processes.workers(living)
    found = {}
    for identity in living:
        process = identity.process()
        with contextlib.suppress(*UNSEEN):
            parent = process.ppid() if process is not None and identity.pid in workers else identity.pid
            if parent in ranks:
                found[identity.pid] = _Guarded(identity, run.stacks(ranks[parent]), identity.pid in ranks)
    return found


def _is_caught(pid: int) -> bool:
    """Return whether the signal is handled there: where it is not, it would end the process."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)
