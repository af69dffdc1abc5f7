"""One run from start to end: attempts, incidents, decisions, until it is finished or stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.launch import masking
from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import evidence, incident, machine, output, processes, record, states, weights
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Diagnosis, Evidence, diagnose
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.observation import History, Observation, step_of
from fluxguard.supervisor.policy import Decision, Setback, decide
from fluxguard.supervisor.sensors import Sensors
from fluxguard.supervisor.states import Plan, State
from fluxguard.supervisor.trainee import Trainee
from fluxguard.supervisor.watch import Watched, watch

_log = logging.getLogger(__name__)

_LARGEST_LOG = 64 << 20
_KEEP_STATES = 2


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or was left."""

    finished: bool
    reason: str
    left: bool = False
    """Whether the supervisor leaves while the run goes on."""


@dataclass(frozen=True)
class Restart:
    """Where the next attempt starts."""

    argv: tuple[str, ...] | Refusal
    """Its command, or why no state can be resumed from exactly."""
    state: State | None
    """None from the beginning."""
    set_aside: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """True steps it starts with."""
        return self.state.true_step if self.state else 0


@dataclass
class Supervision:
    """The supervision of one run by its one owner."""

    run: RunDir
    ledger: Ledger
    trainee: Trainee
    limits: Limits
    clock: Clock
    leave_asked: Callable[[], bool] = lambda: False
    """Whether somebody wants this supervisor, not the run, to end."""
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        self.plan = record.planned(self.ledger, self.trainee.accumulation)

    def to_the_end(self) -> Outcome:
        """Supervise until the run is finished or stopped. A living attempt is adopted, a stopped run resumed."""
        self.run.stop.unlink(missing_ok=True)
        attempt = self._adopted()
        if attempt is None:
            started = self._start(self._restart())
            if isinstance(started, Outcome):
                return started
            attempt = started
        while True:
            sensors = Sensors(self.run, attempt, self.clock)
            watched = watch(
                lambda sample, sensors=sensors: sensors.look(sample=sample),  # type: ignore[misc]
                self.clock,
                self.limits,
                stop_asked=lambda: self.run.stop.exists() or self.leave_asked(),
                seen=lambda seen, attempt=attempt: self._seen(seen, attempt),  # type: ignore[misc]
            )
            after = self._after(attempt, watched, sensors)
            if isinstance(after, Outcome):
                return after
            attempt = after

    def _adopted(self) -> Attempt | None:
        attempt = attempts.last(self.ledger.events)
        if attempt is None or attempts.closed(self.ledger.events, attempt.uuid):
            return None
        self.ledger.add("adopted", attempt=attempt.uuid, number=attempt.number)
        return attempt

    def _seen(self, seen: Observation, attempt: Attempt) -> None:
        """Keep what a look teaches about the plan, and the log bounded."""
        attempts.forget(self.run, attempt.uuid)
        output.bound(self.run.log, _LARGEST_LOG)
        planned = (seen.beat.total if seen.beat else 0) or seen.shown.planned
        plan = states.with_plan(self.plan, planned_steps=planned, batches_per_epoch=seen.shown.batches_per_epoch)
        if plan != self.plan:
            self.plan = plan
            self.ledger.add(
                "plan",
                planned_steps=plan.planned_steps,
                batches_per_epoch=plan.batches_per_epoch,
                accumulation=plan.accumulation,
            )

    def _after(self, attempt: Attempt, watched: Watched, sensors: Sensors) -> Attempt | Outcome:
        """Return what follows the watching of an attempt: the next one, or how the run ended."""
        step = self._true_step(attempt, watched.history.last)
        if watched.symptom is None:
            return self._stop_on_request(attempt, step) if self.run.stop.exists() else _LEFT
        ended = watched.history.last.exit
        if ended is not None and ended.code == 0:
            outcome = self._finished(attempt, step)
            if isinstance(outcome, Outcome):
                return outcome
            return self._incident(attempt, watched.symptom, watched.history, sensors, step, known=outcome)
        return self._incident(attempt, watched.symptom, watched.history, sensors, step)

    def _true_step(self, attempt: Attempt, seen: Observation) -> int:
        # A beat may be older than the restoring of the state that the attempt started from.
        return max(seen.beat.step, attempt.start_step) if seen.beat else attempt.start_step + step_of(seen)

    def _finished(self, attempt: Attempt, step: int) -> Outcome | Diagnosis:
        """Return the end of the run when it is really finished; a diagnosis of why it is not otherwise."""
        self._end(attempt)
        found = weights.verify(self.trainee.weights, newer_than=attempt.at)
        self._seal()
        applied = max(step, states.newest_step(self.run))
        if not found.verified:
            return Diagnosis(
                cause="no verified weights",
                words=f"The trainer said it was done, but its final weights do not verify: {found.reason}.",
                advice="The last lines of its output are in the report.",
                place="final weights",
            )
        if self.plan.planned_steps and applied != self.plan.planned_steps:
            return Diagnosis(
                cause="wrong number of steps",
                words=f"The trainer ended after {applied} of {self.plan.planned_steps} planned steps.",
                advice="Harden the trainer (`fluxguard apply-patches`): upstream's own step counting is wrong here.",
                place="end",
                again=False,
            )
        self.ledger.add("ended", attempt=attempt.uuid, code=0, signal=None, step=applied)
        if self.trainee.own_cadence:
            states.prune(self.run, _KEEP_STATES)
        reason = f"finished and verified: {applied} steps, {found.reason}"
        self.ledger.add("finished", reason=reason, weights=str(self.trainee.weights), applied_steps=applied)
        return Outcome(True, reason)

    def _stop_on_request(self, attempt: Attempt, step: int) -> Outcome:
        self._end(attempt)
        self.ledger.add("ended", attempt=attempt.uuid, code=None, signal=None, step=step)
        return self._stopped("stopped on request")

    def _stopped(self, reason: str) -> Outcome:
        return Outcome(False, record.stopped(self.run, self.ledger, self.plan, reason))

    def _end(self, attempt: Attempt) -> processes.Ending:
        limits = self.limits.watch
        return processes.end(attempt.processes, self.clock, grace=limits.grace, reap=limits.reap)

    def _incident(
        self,
        attempt: Attempt,
        symptom: Symptom,
        history: History,
        sensors: Sensors,
        step: int,
        known: Diagnosis | None = None,
    ) -> Attempt | Outcome:
        """Collect, end, diagnose, decide, report; return the next attempt or the end of the run."""
        at, seen = self.clock.wall(), history.last
        lines = [masking.mask(line, self.trainee.secrets) for line in sensors.tail.lines]
        found = evidence.collect(self.run, attempt, symptom, seen, lines, step, self.clock, self.limits.watch)
        figures = machine.figures(self.run.output_dir, self.limits.watch.evidence)
        usage = found.usage or (history.sampled.usage if history.sampled else None)
        pids = [pid for pid, _, _ in usage.states] if usage else []
        ending = self._end(attempt)
        machine.wait_for_gpu_memory(pids, self.clock, longest=self.limits.watch.memory, ask=self.limits.watch.evidence)
        self.ledger.add(
            "ended",
            attempt=attempt.uuid,
            code=seen.exit.code if seen.exit else None,
            signal=seen.exit.signal if seen.exit else None,
            step=step,
        )
        diagnosis = known or diagnose(symptom, found)
        start = self._restart()
        setback = Setback(
            cause=diagnosis.cause,
            origin=diagnosis.origin,
            place=diagnosis.place,
            step=step,
            progressed=step > max((s.step for s in record.setbacks(self.ledger.events)), default=0),
        )
        decision = decide(diagnosis, [*record.setbacks(self.ledger.events), setback], self.limits)
        if decision.action == "restart" and isinstance(start.argv, Refusal):
            decision = Decision(action="stop", reason=start.argv.reason)
        written = incident.made(
            incident.next_number(self.run),
            at,
            attempt.number,
            symptom,
            diagnosis,
            decision,
            ending,
            found,
            detected_after=_detected_after(symptom, found, at),
            resumed_step=start.step if decision.action == "restart" else None,
            start_step=start.step,
            figures=figures,
            set_aside=start.set_aside,
        )
        report = incident.write(self.run, written, found, seen.beat)
        self._record(written, setback, report)
        return self._follow(decision, diagnosis, start)

    def _record(self, written: incident.Incident, setback: Setback, report: Path) -> None:
        self.ledger.add(
            "incident",
            number=written.number,
            cause=written.cause,
            phase=written.phase,
            detected_after_s=written.detected_after_s,
            step=written.step,
            resumed_step=written.resumed_step,
            lost_steps=written.lost_steps,
            words=written.words,
            advice=written.advice,
            report=str(report),
            origin=setback.origin,
            place=setback.place,
            progressed=setback.progressed,
        )

    def _follow(self, decision: Decision, diagnosis: Diagnosis, start: Restart) -> Attempt | Outcome:
        next_at = self.clock.wall() + decision.after if decision.action == "restart" else None
        self.ledger.add(
            "decision", action=decision.action, reason=decision.reason, after=decision.after, next_attempt_at=next_at
        )
        if decision.action == "stop":
            return self._stopped(f"{diagnosis.words} {decision.reason[0].upper()}{decision.reason[1:]}")
        until = self.clock.monotonic() + decision.after
        while self.clock.monotonic() < until:
            if self.run.stop.exists():
                return self._stopped("stopped on request")
            if self.leave_asked():
                return _LEFT
            self.clock.sleep(min(self.limits.watch.look, max(0.0, until - self.clock.monotonic())))
        return self._start(start)

    def _seal(self) -> list[str]:
        """Seal what no trainer writes any more; return what was set aside."""
        return states.seal(self.run, self.plan, since=record.began(self.ledger))

    def _restart(self) -> Restart:
        """Return where the next attempt starts: the newest state that verifies and that its trainer resumes exactly."""
        aside = self._seal()
        refused: Refusal | None = None
        for state in states.verified(self.run, self.plan, aside):
            argv = self.trainee.resumed(_start_point(state), self.plan)
            if not isinstance(argv, Refusal):
                return Restart(argv, state, tuple(aside))
            refused = refused or argv
        return Restart(refused or self.trainee.argv, None, tuple(aside))

    def _start(self, start: Restart) -> Attempt | Outcome:
        if isinstance(start.argv, Refusal):
            return self._stopped(start.argv.reason)
        before = attempts.last(self.ledger.events)
        return attempts.spawn(
            self.run,
            self.ledger,
            start.argv,
            shown_argv=self.trainee.masked(start.argv),
            cwd=self.trainee.cwd,
            env=self.trainee.env,
            number=before.number + 1 if before else 1,
            start_step=start.step,
            state=start.state.path if start.state else None,
            kills_before=machine.out_of_memory_kills(),
        )


_LEFT = Outcome(False, "left; the run goes on", left=True)


def _start_point(state: State) -> StartPoint:
    return StartPoint(
        state=state.path,
        true_step=state.true_step,
        epoch=state.manifest.epoch,
        at_epoch_end=state.at_epoch_end,
    )


def _detected_after(symptom: Symptom, found: Evidence, at: float) -> float:
    """Return the seconds between the last sign and the detection.

    The guard's own line at the end is no sign of life: its last words say how long it had waited by then.
    """
    if found.last_words:
        return float(found.last_words.get("waited") or 0) + max(0.0, at - float(found.last_words.get("time") or at))
    if found.exit is not None and found.exit.at:
        return max(0.0, at - found.exit.at)
    return symptom.since


def with_max_restarts(limits: Limits, count: int | None) -> Limits:
    """Return the limits with another budget, when one is given."""
    return limits if count is None else replace(limits, max_restarts=count)
