"""One run from start to end: attempts and what follows each, until it is finished or stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fluxguard.clock import Clock
from fluxguard.launch.command import Refusal
from fluxguard.launch.remedies import Change
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import (
    distrust,
    finish,
    learning,
    mending,
    nodes,
    noticing,
    ownership,
    record,
    remembering,
    restart,
    restarted,
    rivals,
    rounds,
    setback,
    starting,
    surroundings,
)
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.quiet import Lister
from fluxguard.supervisor.checkpoints.states import Plan, Sealed
from fluxguard.supervisor.detecting.observation import History, Observation
from fluxguard.supervisor.learning import Chosen, Learned
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.rounds import Hung, Rounds
from fluxguard.supervisor.sensing import output, processes
from fluxguard.supervisor.sensing.sensors import Sensors
from fluxguard.supervisor.setback import Gathered
from fluxguard.supervisor.surroundings import Surroundings
from fluxguard.supervisor.trainee import Trainee
from fluxguard.supervisor.watch import Watched, watch

_log = logging.getLogger(__name__)

_LARGEST_LOG = 64 << 20
_BOUND_EVERY = 60.0
_SPAWN_TRIES = 4


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or was left."""

    finished: bool
    reason: str
    left: bool = False
    """Whether the supervisor leaves while the run goes on."""


LEFT = Outcome(False, "left; the run goes on", left=True)
"""What follows when somebody wants the supervisor, not the run, to end."""


@dataclass
class Supervision:
    """The supervision of one run by its one owner."""

    run: RunDir
    ledger: Ledger
    trainee: Trainee
    chosen: Chosen
    clock: Clock
    leave_asked: Callable[[], bool] = lambda: False
    """Whether somebody wants this supervisor, not the run, to end."""
    plan: Plan = field(default_factory=Plan)
    limits: Limits = field(init=False)
    """Those that were chosen, with what was learned."""
    _around: Surroundings = field(init=False)
    _lister: Lister = field(init=False)
    _learned: Learned = field(init=False)
    _rounds: Rounds = field(default_factory=Rounds)
    _bounded_at: float = 0.0

    def __post_init__(self) -> None:
        self.plan = record.planned(self.ledger, self.trainee.accumulation)
        self._around = Surroundings(self.run, self.ledger)
        self._lister = Lister(self.run)
        self._learned = remembering.learned(self.run)
        self.limits = self.chosen.grown(self._learned)

    def to_the_end(self) -> Outcome:
        """Supervise until the run is finished or stopped. A living attempt is adopted, a stopped run resumed."""
        after = self._adopted() or self._start(self._restart())
        while isinstance(after, Attempt):
            after = self._watch(after)
        return after

    def _adopted(self) -> Attempt | None:
        attempt = attempts.last(self.run, self.ledger.events)
        if attempt is None:
            return None
        self._remember(attempt)  # it may have ended while nobody watched
        if attempts.closed(self.ledger.events, attempt.uuid):
            return None
        self.ledger.add("adopted", attempt=attempt.uuid, number=attempt.number)
        return attempt

    def _remember(self, attempt: Attempt, more: Learned = learning.NOTHING) -> None:
        """Keep what an attempt has taught; the limits grow with it, for its successors and for us."""
        known = self._learned.merged(remembering.of_attempt(self.run, attempt)).merged(more)
        if known != self._learned:
            self._learned, self.limits = known, self.chosen.grown(known)
            remembering.keep(self.run, self.chosen, known)

    def _watch(self, attempt: Attempt) -> Attempt | Outcome:
        """Watch an attempt to its end; return what follows it."""
        sensors = Sensors(self.run, attempt, self.clock, elastic=self.trainee.elastic)
        self._rounds = self._rounds.of(attempt.uuid)
        watched = watch(
            lambda sample: sensors.look(sample=sample),
            self.clock,
            self.limits,
            stop_asked=lambda: self._stop_asked() or self.leave_asked(),
            seen=lambda seen: self._seen(seen, attempt, sensors.tail.lines),
            sampled=lambda history: self._sampled(history, attempt),
        )
        self._learn(watched.history.last)
        record.healed(self.ledger, watched.history.last.healed)
        self._remember(attempt, learning.of_history(watched.history))
        if watched.symptom is None:
            return self._stop_on_request(attempt, watched) if self._stop_asked() else LEFT
        if self._around.lost(attempt):
            return self._without_folder(attempt, watched.history.last)
        ended, known = watched.history.last.exit, None
        if ended is not None and (ended.code == 0 or ended.unknown):
            finished = self._finished(attempt, watched.history.last)
            if isinstance(finished, Outcome):
                return finished
            known = finished if ended.code == 0 else None
        known = surroundings.restarted(self.run, attempt) or known
        if self.trainee.elastic and (only := rounds.hung(attempt, watched.symptom, watched.history.last.ranks)):
            return self._end_round(attempt, watched, sensors, only)
        return self._set_back(attempt, watched, sensors, known)

    def _without_folder(self, attempt: Attempt, seen: Observation) -> Attempt | Outcome:
        """Return what follows when the output folder went away; what can then not be seen any more is not hung."""
        if seen.exit is None and seen.beat is None:
            return self._let_be(attempt, lambda: not self._around.lost(attempt))
        self._end(attempt)
        step = self._true_step(attempt, seen)
        self.ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=step)
        return self._stopped(surroundings.words(self.run), reached=step)

    def _let_be(self, attempt: Attempt, enough: Callable[[], bool]) -> Attempt | Outcome:
        """Leave a trainer alone until it ends or it is `enough`; then it is looked at afresh."""
        while attempt.exit(self.run) is None and not enough() and not self._stop_asked():
            if self.leave_asked():
                return LEFT
            self.clock.sleep(self.limits.watch.look)
        return attempt

    def _stop_asked(self) -> bool:
        return os.path.exists(self.run.stop)

    def _seen(self, seen: Observation, attempt: Attempt, lines: Iterable[str]) -> None:
        """Keep what a look teaches about the plan, and the log bounded."""
        self._learn(seen)
        record.healed(self.ledger, seen.healed)
        attempts.forget(self.run, attempt.uuid)
        self._around.look(attempt, seen.now, self._true_step(attempt, seen))
        if self.trainee.elastic:
            self._in_rounds(seen, attempt, lines)
        if not (self.trainee.hardened or self.trainee.foreign):
            others = record.others(self.ledger)
            self._lister.look(self.plan, since=attempt.at, now=self.clock.wall(), others=others)
        early = seen.now - self._bounded_at <= _BOUND_EVERY
        if not early or seen.output > _LARGEST_LOG:
            self._bounded_at = seen.now
            output.bound(self.run.log, _LARGEST_LOG, flood=early)

    def _in_rounds(self, seen: Observation, attempt: Attempt, lines: Iterable[str]) -> None:
        """Keep which ranks train again, and why their agent has started them again."""
        step = self._true_step(attempt, seen)
        if seen.exit is None:
            ours = self._rounds.ended
            restarted.note(self.ledger, attempt, lines, self.trainee, but=ours, phase=seen.phase, step=step)
        if ranks := self._rounds.seen(seen.ranks):
            self.ledger.add("round", attempt=attempt.uuid, number=self._rounds.number, ranks=list(ranks), step=step)

    def _sampled(self, history: History, attempt: Attempt) -> None:
        """Keep what is to be noticed of a training that goes on."""
        step = self._true_step(attempt, history.last)
        at, secrets = self.clock.wall(), self.trainee.secrets
        noticing.notice(self.run, self.ledger, attempt, history, self.limits, at=at, step=step, secrets=secrets)

    def _learn(self, seen: Observation) -> None:
        plan = states.with_plan(
            self.plan,
            planned_steps=seen.planned,
            batches_per_epoch=seen.shown.batches_per_epoch,
        )
        if plan != self.plan:
            self.plan = plan
            record.plan(self.ledger, plan, restart.doubt(self.trainee, plan))

    def _true_step(self, attempt: Attempt, seen: Observation) -> int:
        beat = rounds.last_beat(self.run, attempt, seen)
        return attempt.true_step(beat, seen.shown, hardened=self.trainee.hardened)

    def _finished(self, attempt: Attempt, seen: Observation) -> Outcome | Diagnosis:
        """Return the end of the run when it is really finished; a diagnosis of why it is not otherwise."""
        self._end(attempt)
        applied = max(self._true_step(attempt, seen), *self._seal().steps, 0)
        elsewhere = finish.saved_elsewhere(self.trainee, [beat.rank for beat in attempt.beats(self.run)])
        found = finish.judge(self.trainee, self.plan, attempt, applied, elsewhere=elsewhere)
        if isinstance(found, Diagnosis):
            return found
        reason = "; ".join(filter(None, (found.reason, record.healing(self.ledger.events))))
        self.ledger.add(
            "finished",
            attempt=attempt.uuid,
            reason=reason,
            weights=found.weights,
            size=found.size,
            applied_steps=applied,
        )
        return Outcome(True, reason)

    def _finished_on(self, other: str) -> Outcome:
        reason = f"finished on {other}, without this machine"
        self.ledger.add("finished", attempt="", reason=reason, weights="", size=None, applied_steps=0)
        return Outcome(True, reason)

    def _stop_on_request(self, attempt: Attempt, watched: Watched) -> Outcome:
        ending = self._end(attempt)
        step = self._true_step(attempt, watched.history.last)
        self.ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=step)
        left = f" (process {', '.join(map(str, ending.left))} is still there: no signal ends it)" if ending.left else ""
        return self._stopped(f"stopped on request{left}", reached=step)

    def _stopped(self, reason: str, *, reached: int = 0, refused: bool = False) -> Outcome:
        said = record.stopped(self.run, self.ledger, self.plan, reason, reached=reached, refused=refused)
        return Outcome(False, said)

    def _end(self, attempt: Attempt) -> processes.Ending:
        watch_limits = self.limits.watch
        return processes.end(attempt.processes, self.clock, grace=watch_limits.grace, reap=watch_limits.reap)

    def _gathered(self, attempt: Attempt, watched: Watched, sensors: Sensors, only: Hung | None = None) -> Gathered:
        assert watched.symptom is not None
        seen, lines = (watched.symptom, watched.history), list(sensors.tail.lines)
        return setback.gather(self.run, attempt, *seen, self.trainee, lines, self.clock, self.limits, only=only)

    def _set_back(
        self, attempt: Attempt, watched: Watched, sensors: Sensors, known: Diagnosis | None
    ) -> Attempt | Outcome:
        """Return what follows an attempt that did not reach the end: the next one, or the end of the run."""
        gathered = self._gathered(attempt, watched, sensors)
        ended = gathered.evidence.exit
        self.ledger.add(
            "ended",
            attempt=attempt.uuid,
            code=ended.code if ended else None,
            signal=ended.signal if ended else None,
            step=gathered.evidence.step,
        )
        diagnosis = setback.explain(gathered, known)
        distrust.note(self.ledger, attempt.uuid, setback.distrusts(gathered, diagnosis))
        start = self._restart()
        earlier = record.setbacks(self.ledger.events)
        mine, decision = setback.judge(gathered, diagnosis, start, earlier, self.limits, self._offers)
        setback.report(self.run, self.ledger, gathered, diagnosis, mine, decision, start)
        return self._follow(decision, diagnosis, start)

    def _end_round(self, attempt: Attempt, watched: Watched, sensors: Sensors, only: Hung) -> Attempt | Outcome:
        """End the ranks of a round that hangs; the attempt goes on, as their agent starts the next one."""
        gathered = self._gathered(attempt, watched, sensors, only)
        diagnosis, start = setback.explain(gathered, None), self._restart()
        mine, decision = setback.judge(gathered, diagnosis, start, record.setbacks(self.ledger.events), self.limits)
        decision = rounds.decided(decision)
        setback.report(self.run, self.ledger, gathered, diagnosis, mine, decision, start)
        if decision.action == rounds.ROUND:
            self._rounds.end(one.pid for one in only.processes)
            rounds.forget_last_words(self.run)
            self._decided(decision)
            return attempt
        self._end(attempt)
        self.ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=mine.step)
        return self._follow(decision, diagnosis, start)

    def _decided(self, decision: Decision) -> None:
        next_at = self.clock.wall() + decision.after if decision.action == "restart" else None
        change = decision.change
        self.ledger.add(
            "decision",
            action=decision.action,
            reason=decision.reason,
            after=decision.after,
            next_attempt_at=next_at,
            remedy=change.remedy if change else None,
            flags=list(change.flags) if change else [],
        )

    def _follow(self, decision: Decision, diagnosis: Diagnosis, start: Restart) -> Attempt | Outcome:
        self._decided(decision)
        change = decision.change
        if decision.action == "stop":
            why = f"{diagnosis.words.rstrip('.')}. {decision.reason[0].upper()}{decision.reason[1:]}"
            return self._stopped(why, refused=isinstance(start.argv, Refusal))
        mending.set_aside(change.files if change else ())
        return self._rest(decision.after) or self._start(start)

    def _offers(self, diagnosis: Diagnosis) -> list[Change]:
        """Return what another attempt could do otherwise."""
        taken = [one.name for one in record.remedies(self.ledger.events)]
        return list(restart.offers(self.trainee, taken, diagnosis, self.clock))

    def _rest(self, seconds: float) -> Outcome | None:
        """Wait before the next attempt; return how the run ends when somebody wants that meanwhile."""
        until = self.clock.monotonic() + seconds
        while True:
            ownership.sign(self.run)
            if self._stop_asked():
                return self._stopped("stopped on request")
            if self.leave_asked():
                return LEFT
            left = until - self.clock.monotonic()
            if left <= 0:
                return None
            self.clock.sleep(min(self.limits.watch.look, left))

    def _seal(self) -> Sealed:
        """Seal what no trainer writes any more."""
        if self.trainee.foreign:
            return Sealed()
        self._lister.rest()
        return record.seal(self.run, self.ledger, self.plan)

    def _restart(self) -> Restart:
        distrusted, every = distrust.known(self.ledger.events), self.limits.save.every
        start = restart.choose(self.run, self.trainee, self.plan, self._seal(), distrusted, save_every=every)
        if start.state:
            states.prune(self.run, start.state, own_cadence=self.trainee.own_cadence)
        return start

    def _start(self, start: Restart) -> Attempt | Outcome:
        """Start the next attempt; a system that is short of something for a moment is asked again."""
        if isinstance(start.argv, Refusal):
            return self._stopped(start.argv.reason, refused=True)
        if other := nodes.finished(self.run, record.began(self.ledger)):
            return self._finished_on(other)
        if rival := rivals.find(self.run, attempts.known(self.ledger.events)):
            return self._stopped(f"{rival.words}; two trainings in one folder would ruin each other")
        for number in range(_SPAWN_TRIES):
            try:
                return starting.spawn(self.run, self.ledger, self.trainee, start, start.argv)
            except OSError as error:
                failed = error
                _log.warning("the trainer cannot be started: %s", error)
            if ended := self._rest(self.limits.watch.backoff * number):
                return ended
        return self._stopped(f"the trainer cannot be started: {failed}")
