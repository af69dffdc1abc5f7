"""Reads what there is to see of an attempt. Sensors have no opinions."""

from __future__ import annotations

import os
from dataclasses import replace

from fluxguard import heartbeat
from fluxguard.clock import Clock
from fluxguard.heartbeat import Beat
from fluxguard.rundir import RunDir
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting import patterns
from fluxguard.supervisor.detecting.observation import Exit, Observation
from fluxguard.supervisor.detecting.patterns import NOTHING, Matcher, Matches
from fluxguard.supervisor.incidents.evidence import last_words
from fluxguard.supervisor.sensing import cgroups, host, machine, processes
from fluxguard.supervisor.sensing.disk import Disk
from fluxguard.supervisor.sensing.gpu import Gpus, since
from fluxguard.supervisor.sensing.heals import Heals
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.output import Shown, Tail, shown_after, stepped
from fluxguard.supervisor.sensing.procfs import Tree


class Sensors:
    """Looks at one attempt through its files and its processes, and at the machine around it."""

    def __init__(
        self, run: RunDir, attempt: Attempt, clock: Clock, gpus: Gpus | None = None, *, elastic: bool = False
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._clock = clock
        self._shown = Shown()
        self._ranks = _Ranks(run, attempt, elastic=elastic)
        self._orphans: list[Identity] = []
        self._tree = Tree()
        self._heals = Heals(run, attempt.uuid)
        self._gpus = gpus or machine.gpu_sensor()
        self._faults_before = self._gpus.look().heard  # those of an attempt before explain nothing of this one
        self._disk = Disk(run.output_dir, clock)
        self._groups = cgroups.of_process(attempt.keeper.pid if attempt.keeper else None) or cgroups.of_process()
        self._matcher = Matcher(patterns.kept(run))
        self.tail = Tail(run.log, attempt.log_from)

    def look(self, *, sample: bool = False) -> Observation:
        """Return what is to be seen now; `sample` also looks at processes and machine, which costs more."""
        # The exit first: what was written before the end is then read in the same look.
        ended = self._ended()
        ranks = self._ranks.look(again=sample)
        matches = self._read(whole=ended is not None)
        cards, free = self._gpus.look(ask=sample), self._disk.look(ask=sample)
        silent = (*(["GPU"] if cards.silent else []), *(["disk"] if self._disk.silent else []))
        return Observation(
            now=self._clock.monotonic(),
            exit=ended,
            beat=self._ranks.speaks(ranks),
            between=self._ranks.between,
            shown=self._shown,
            output=self.tail.position,
            spoken=last_words(self._run, self._attempt) is not None,
            usage=processes.usage(self._attempt.keeper, self._orphans, self._tree) if sample else None,
            healed=self._heals.look(),
            ranks=ranks,
            gpus=cards.cards,
            xids=since(cards, self._faults_before),
            host=host.look(self._groups) if sample else None,
            disk_free=free,
            silent=silent,
            patterns=self._matcher.patterns,
            matches=matches,
            unread=self.tail.skipped,
        )

    def _read(self, *, whole: bool) -> Matches:
        """Read what is new of the output, `whole` to its end; return what it shows of the user's own patterns."""
        found = NOTHING
        while True:
            before = self.tail.position
            lines = self.tail.read()
            self._shown = shown_after(self._shown, lines)
            found = found.with_more(self._matcher.search(lines))
            if not whole or self.tail.position == before:
                break
        if found.step is not None:
            self._shown = stepped(self._shown, found.step, found.total or 0)
        if found.loss is not None:
            self._shown = replace(self._shown, loss=found.loss)
        return found

    def _ended(self) -> Exit | None:
        """Return how the attempt ended. A trainer that lost its keeper, which is ours, goes on until it is gone."""
        ended = self._attempt.exit(self._run)
        if ended is None or not ended.unknown:
            return ended
        if not any(orphan.alive() for orphan in self._orphans):
            self._orphans = self._attempt.processes()
        return None if self._orphans else ended


class _Ranks:
    """Reads the heartbeats of all ranks of this machine."""

    def __init__(self, run: RunDir, attempt: Attempt, *, elastic: bool) -> None:
        self._folder = run.beats()
        self._elastic = elastic
        self._living: dict[tuple[int, float], Identity | None] = {}
        self.between = False
        """Whether the ranks of one round are gone and those of the next one have not come."""
        self._mark = attempt.mark
        self._paths: list[str] = []
        self._speaker: int | None = None

    def look(self, *, again: bool) -> tuple[Beat, ...]:
        """Return the last heartbeat of each, by rank; `again` looks for ranks that are new."""
        if again or not self._paths or self.between:
            ranks = heartbeat.ranks(self._folder)
            self._paths = [os.fspath(heartbeat.path_for(self._folder, rank)) for rank in ranks]
        beats = map(heartbeat.read, self._paths)
        mine = tuple(beat for beat in beats if beat is not None and beat.attempt == self._mark)
        return self._of_this_round(mine) if self._elastic else mine

    def _of_this_round(self, beats: tuple[Beat, ...]) -> tuple[Beat, ...]:
        """Return the beats of those that live: what is dead was ended with its round, and says nothing of the next."""
        known = self._living
        self._living = {who: known[who] if who in known else Identity.of(who[0]) for who in map(_who, beats)}
        living = {who for who, identity in self._living.items() if identity is not None and identity.alive()}
        found = tuple(beat for beat in beats if _who(beat) in living)
        self.between = bool(beats) and not found
        if any(beat.rank == self._speaker for beat in beats if _who(beat) not in living):
            self._speaker = None
        return found

    def speaks(self, ranks: tuple[Beat, ...]) -> Beat | None:
        """Return the beat that stands for all: that of the lowest rank of this machine; rank 0 may be on another one.

        While that one cannot be read nobody speaks in its place: two ranks are not at the same place.
        """
        if ranks and (self._speaker is None or ranks[0].rank < self._speaker):
            self._speaker = ranks[0].rank
        return ranks[0] if ranks and ranks[0].rank == self._speaker else None


def _who(beat: Beat) -> tuple[int, float]:
    """Return by what a process is told from one of another round that has had the same number."""
    return beat.pid, beat.started
