"""Reads what there is to see of an attempt. Sensors have no opinions."""

from __future__ import annotations

from fluxguard import heartbeat
from fluxguard.clock import Clock
from fluxguard.rundir import RunDir
from fluxguard.supervisor import processes
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.evidence import last_words
from fluxguard.supervisor.heals import Heals
from fluxguard.supervisor.identity import Identity
from fluxguard.supervisor.observation import Exit, Observation
from fluxguard.supervisor.output import Shown, Tail, shown_after


class Sensors:
    """Looks at one attempt through its files and its processes."""

    def __init__(self, run: RunDir, attempt: Attempt, clock: Clock) -> None:
        self._run = run
        self._attempt = attempt
        self._clock = clock
        self._shown = Shown()
        self._beats = heartbeat.path_for(run.beats(), 0)
        self._orphans: list[Identity] = []
        self._heals = Heals(run, attempt.uuid)
        self.tail = Tail(run.log, attempt.log_from)

    def look(self, *, sample: bool = False) -> Observation:
        """Return what is to be seen now; `sample` also counts what the processes use, which costs more."""
        # The exit first: what was written before the end is then read in the same look, however much it is.
        ended = self._ended()
        beat = heartbeat.read(self._beats)
        while lines := self.tail.read():
            self._shown = shown_after(self._shown, lines)
            if ended is None:
                break
        return Observation(
            now=self._clock.monotonic(),
            exit=ended,
            beat=beat if beat is not None and beat.attempt == self._attempt.mark else None,
            shown=self._shown,
            output=self.tail.position,
            spoken=last_words(self._run, self._attempt) is not None,
            usage=processes.usage(self._attempt.keeper, self._orphans) if sample else None,
            healed=self._heals.look(),
        )

    def _ended(self) -> Exit | None:
        """Return how the attempt ended. A trainer that lost its keeper, which is ours, goes on until it is gone."""
        ended = self._attempt.exit(self._run)
        if ended is None or not ended.unknown:
            return ended
        if not any(orphan.alive() for orphan in self._orphans):
            self._orphans = self._attempt.processes()
        return None if self._orphans else ended
