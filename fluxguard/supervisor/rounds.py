"""Rounds: an elastic agent ends and starts the ranks of its machine by itself, within one attempt.

So a round that hangs is ended by ending its ranks and nothing else: the agent, which nobody signals, sees them go,
meets the agents of the other machines again, and starts the next round. Only an agent that does not do that, or that
has used up its own restarts, ends the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fluxguard import heartbeat
from fluxguard.clock import Clock
from fluxguard.heartbeat import Beat
from fluxguard.rundir import RunDir, end_request, write_json
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Observation
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import Identity

ROUND = "round"
"""What is decided when the agent, not we, starts again."""
GOES_ON = (
    "the ranks of this machine were ended; their agent, which was not, starts a new round with all ranks that are "
    "there, from the newest state that the trainer finds"
)
_RANK = "LOCAL_RANK"
_ANSWERS_WITHIN = 3.0
"""The guard looks once a second, and takes another one to say farewell."""
_ANSWER_LOOK = 0.05


def ranks_of(attempt: Attempt) -> list[Identity]:
    """Return the ranks of this machine that live, with everything they have started; never their agent."""
    return processes.carrying(attempt.processes(), _RANK)


@dataclass(frozen=True)
class Hung:
    """The ranks of a round that is to be ended, with everything they have started.

    They are those that lived when it was found out: what the agent starts meanwhile is the next round.
    """

    processes: tuple[Identity, ...]
    beats: tuple[Beat, ...] = ()
    """Of those that have a guard, which can end them."""

    def find(self) -> list[Identity]:
        """Return the processes that still live."""
        return [one for one in self.processes if one.alive()]

    def ask(self, run: RunDir, why: str, clock: Clock) -> tuple[int, ...]:
        """Ask the guard in each rank to end it, and wait a moment; return the ranks that are gone.

        Only so it ends with the exit code that says that another attempt may pass, its stacks and last words written.
        A rank that cannot run, or holds its interpreter, does not answer.
        """
        asked = [beat for beat in self.beats if _asked(run, beat, why)]
        until = clock.monotonic() + _ANSWERS_WITHIN
        while clock.monotonic() < until and self._left(asked):
            clock.sleep(_ANSWER_LOOK)
        left = {beat.pid for beat in self._left(asked)}
        return tuple(beat.rank for beat in asked if beat.pid not in left)

    def _left(self, asked: Iterable[Beat]) -> list[Beat]:
        living = {one.pid for one in self.find()}
        return [beat for beat in asked if beat.pid in living]


def _asked(run: RunDir, beat: Beat, why: str) -> bool:
    path = end_request(run.beats(), beat.rank)
    try:
        if path is not None:
            write_json(path, {"pid": beat.pid, "why": why})
    except OSError:
        return False
    return path is not None


def hung(attempt: Attempt, symptom: Symptom, beats: Sequence[Beat]) -> Hung | None:
    """Return the ranks that are to be ended for a symptom; None where the whole attempt is to be.

    Where the guard has ended a rank already, its agent ends the others.
    """
    if symptom.kind == "ended":
        return None
    if symptom.kind == "given up":
        return Hung(())
    ranks = ranks_of(attempt)
    pids = {one.pid for one in ranks}
    return Hung(tuple(ranks), tuple(beat for beat in beats if beat.pid in pids)) if ranks else None


def last_beat(run: RunDir, attempt: Attempt, seen: Observation) -> Beat | None:
    """Return the heartbeat that says how far an attempt has come; between two rounds that of the one that is over."""
    return next(iter(attempt.beats(run)), None) if seen.between else seen.beat


def began(attempt: Attempt, beats: Iterable[Beat]) -> float:
    """Return when the round of these heartbeats began, in seconds since the epoch: what is older is of another one."""
    return max(attempt.at, min((beat.started for beat in beats if beat.started), default=0.0))


def decided(decision: Decision) -> Decision:
    """Return what to do about a round, given what would be done about an attempt: only a restart is another thing."""
    if decision.action != "restart" or decision.change is not None:
        return decision
    return replace(decision, action=ROUND, reason=GOES_ON, after=0.0)


def forget_last_words(run: RunDir) -> None:
    """Remove what the guard has said in a round that is over: it would end the next one."""
    requests = (end_request(run.beats(), rank) for rank in heartbeat.ranks(run.beats()))
    for path in (*run.all_last_words(), run.stacks(0), *filter(None, requests)):
        path.unlink(missing_ok=True)


@dataclass
class Rounds:
    """Which round it is, by the processes that beat. Pure; a rank that has not beaten yet is in no round."""

    attempt: str = ""
    number: int = 1
    _pids: frozenset[int] = field(default_factory=frozenset)
    _told: int = 1
    ended: frozenset[int] = frozenset()
    """The processes of rounds that we have ended."""

    def of(self, attempt: str) -> Rounds:
        """Return the rounds of an attempt: these, or new ones."""
        return self if attempt == self.attempt else Rounds(attempt)

    def end(self, pids: Iterable[int]) -> None:
        """Remember that these processes ended because we wanted it."""
        self.ended |= frozenset(pids)

    def seen(self, beats: Iterable[Beat]) -> tuple[int, ...]:
        """Return the ranks of a round that is new and has come to its steps, once; else nothing."""
        beats = tuple(beats)
        pids = frozenset(beat.pid for beat in beats)
        if not pids:
            return ()
        if self._pids and not pids & self._pids:
            self.number += 1
            self._pids = pids
        self._pids |= pids
        if self._told == self.number or not any(beat.phase == "step" for beat in beats):
            return ()
        self._told = self.number
        return tuple(beat.rank for beat in beats)
