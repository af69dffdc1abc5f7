"""A supervision that only tells: what it sees, why, and what it would do; it never signals the trainer, never restarts.

The training itself is started, or adopted, as always. The one thing that still ends it is the user's own request.
"""

from __future__ import annotations

from dataclasses import replace

from fluxguard.launch import masking
from fluxguard.launch.command import Refusal
from fluxguard.supervisor import distrust, record, restart, setback
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.checkpoints.states import Sealed
from fluxguard.supervisor.incidents import evidence
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.rounds import Hung
from fluxguard.supervisor.sensing.processes import Ending
from fluxguard.supervisor.sensing.sensors import Sensors
from fluxguard.supervisor.setback import Gathered
from fluxguard.supervisor.supervise import Outcome, Supervision
from fluxguard.supervisor.watch import Watched

_TOLD_AGAIN = 600.0
"""Seconds in which a symptom that lasts is not told again."""


class DryRun(Supervision):
    """Supervises one attempt of a run and says what another supervision would do."""

    def _end(self, attempt: Attempt) -> Ending:
        if self._stop_asked():
            return super()._end(attempt)
        return Ending((), tuple(one.pid for one in attempt.processes()), 0.0)

    def _restart(self) -> Restart:
        distrusted, every = distrust.known(self.ledger.events), self.limits.save.every
        return restart.choose(self.run, self.trainee, self.plan, self._seal(), distrusted, save_every=every)

    def _seal(self) -> Sealed:
        # Before an attempt it is part of starting; afterwards nothing is moved.
        return Sealed() if self._attempted else super()._seal()

    @property
    def _attempted(self) -> bool:
        return any(event.kind in ("attempt", "adopted") for event in self.ledger.events[self._began :])

    def __post_init__(self) -> None:
        super().__post_init__()
        self._began = len(self.ledger.events)

    def _set_back(
        self, attempt: Attempt, watched: Watched, sensors: Sensors, known: Diagnosis | None
    ) -> Attempt | Outcome:
        gathered = self._gathered(attempt, watched, sensors)
        start, diagnosis = self._restart(), setback.explain(gathered, known)
        earlier = record.setbacks(self.ledger.events)
        mine, decision = setback.judge(gathered, diagnosis, start, earlier, self.limits, self._offers)
        self._say(attempt, mine.step, diagnosis, decision, start)
        ended = gathered.evidence.exit
        if ended is None:
            until = self.clock.monotonic() + _TOLD_AGAIN
            return self._let_be(attempt, lambda: self.clock.monotonic() > until)
        self.ledger.add("ended", attempt=attempt.uuid, code=ended.code, signal=ended.signal, step=mine.step)
        words = f"dry run: {diagnosis.words.rstrip('.')}. Nothing was done; `fluxguard supervise` goes on"
        self.ledger.add("stopped", reason=words, applied_steps=start.step)
        return Outcome(False, words)

    def _end_round(self, attempt: Attempt, watched: Watched, sensors: Sensors, only: Hung) -> Attempt | Outcome:
        return self._set_back(attempt, watched, sensors, None)

    def _gathered(self, attempt: Attempt, watched: Watched, sensors: Sensors, only: Hung | None = None) -> Gathered:
        """Collect what can be seen without touching a process: reading the stacks would stop it for a moment."""
        assert watched.symptom is not None
        symptom, history, secrets = watched.symptom, watched.history, self.trainee.secrets
        untouched = replace(symptom, kind="ended")  # of what has ended no stacks are read
        seen = evidence.collect(self.run, attempt, untouched, history, self.clock, self.limits.watch)
        lines = [masking.mask(line, secrets) for line in sensors.tail.lines]
        return Gathered(
            attempt=attempt,
            symptom=symptom,
            history=history,
            evidence=replace(seen, step=self._true_step(attempt, history.last), lines=lines),
            figures={},
            ending=Ending((), (), 0.0),
            at=self.clock.wall(),
            secrets=secrets,
        )

    def _say(self, attempt: Attempt, step: int, diagnosis: Diagnosis, decision: Decision, start: Restart) -> None:
        argv: tuple[str, ...] = ()
        if decision.action == "restart" and not isinstance(start.argv, Refusal):
            taken = [one.name for one in record.remedies(self.ledger.events)]
            change = [decision.change.remedy] if decision.change else []
            argv = self.trainee.masked(restart.otherwise(self.trainee, start.argv, [*taken, *change]))
        self.ledger.add(
            "would",
            attempt=attempt.uuid,
            action=decision.action,
            kill=[one.pid for one in attempt.processes()],
            cause=diagnosis.cause,
            words=diagnosis.words,
            reason=decision.reason,
            remedy=decision.change.remedy if decision.change else None,
            flags=list(decision.change.flags) if decision.change else [],
            after=decision.after,
            step=step,
            start_step=start.step,
            argv=list(argv),
        )
