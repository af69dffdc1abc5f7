"""What follows an attempt that did not reach the end: evidence, the end of what still lives, a judgement, a report."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.launch import masking
from fluxguard.launch.command import Refusal
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import evidence, incident, machine, processes, record
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Diagnosis, Evidence, diagnose
from fluxguard.supervisor.incident import Case
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.observation import History
from fluxguard.supervisor.policy import Decision, Setback, decide
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.trainee import Trainee

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everything that was seen of an attempt before, while and after it was ended."""

    attempt: Attempt
    symptom: Symptom
    history: History
    evidence: Evidence
    figures: dict[str, str]
    ending: processes.Ending
    at: float
    """When it was detected, seconds since the epoch."""


def gather(
    run: RunDir,
    attempt: Attempt,
    symptom: Symptom,
    history: History,
    trainee: Trainee,
    lines: list[str],
    clock: Clock,
    limits: Limits,
) -> Gathered:
    """Collect what is to be seen, then end what still lives of the attempt and wait for its GPU memory."""
    at, watch = clock.wall(), limits.watch
    seen = evidence.collect(run, attempt, symptom, history, clock, watch)
    step = attempt.true_step(history.last.beat, history.last.shown, hardened=trainee.hardened)
    stacks = {pid: masking.mask(stack, trainee.secrets) for pid, stack in seen.stacks.items()}
    seen = replace(seen, step=step, stacks=stacks, lines=[masking.mask(line, trainee.secrets) for line in lines])
    figures = machine.figures(run.output_dir, watch.evidence)
    ending = processes.end(attempt.processes, clock, grace=watch.grace, reap=watch.reap)
    pids = [pid for pid, _, _ in seen.usage.states] if seen.usage else []
    machine.wait_for_gpu_memory(pids, clock, longest=watch.memory, ask=watch.evidence)
    if ending.left:
        figures["still there"] = f"process {', '.join(map(str, ending.left))} (inside the kernel; no signal ends it)"
    return Gathered(
        attempt=attempt, symptom=symptom, history=history, evidence=seen, figures=figures, ending=ending, at=at
    )


def judge(
    gathered: Gathered, start: Restart, earlier: list[Setback], limits: Limits, known: Diagnosis | None
) -> tuple[Diagnosis, Setback, Decision]:
    """Return why it happened, how it counts, and what is done about it. Pure."""
    diagnosis = known or diagnose(gathered.symptom, gathered.evidence)
    step = gathered.evidence.step
    setback = Setback(
        cause=diagnosis.cause,
        origin=diagnosis.origin,
        place=diagnosis.place,
        step=step,
        progressed=step > max((one.step for one in earlier), default=0),
    )
    decision = decide(diagnosis, [*earlier, setback], limits)
    if decision.action == "restart" and isinstance(start.argv, Refusal):
        decision = Decision(action="stop", reason=start.argv.reason)
    return diagnosis, setback, decision


def report(
    run: RunDir,
    ledger: Ledger,
    gathered: Gathered,
    diagnosis: Diagnosis,
    setback: Setback,
    decision: Decision,
    start: Restart,
) -> None:
    """Write the incident down, as a report for people and a line in the ledger; a full disk may cost the first."""
    written = incident.of(
        Case(
            number=record.incidents(ledger.events) + 1,
            at=gathered.at,
            attempt=gathered.attempt.number,
            symptom=gathered.symptom,
            diagnosis=diagnosis,
            decision=decision,
            ending=gathered.ending,
            evidence=gathered.evidence,
            detected_after=detected_after(gathered),
            start_step=start.step,
            figures=gathered.figures,
            notes=start.notes,
        )
    )
    path = _write(run, ledger, gathered, written)
    ledger.add(
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
        report=str(path) if path else None,
        origin=setback.origin,
        place=setback.place,
        progressed=setback.progressed,
    )


def _write(run: RunDir, ledger: Ledger, gathered: Gathered, written: incident.Incident) -> Path | None:
    """Write the report, with what a full disk gives back when it must; return where it is."""
    for _ in range(2):
        try:
            return incident.write(run, written, gathered.evidence, gathered.history.last.beat)
        except OSError as error:
            ledger.give_way()
            _log.debug("the report of incident %d cannot be written: %s", written.number, error)
    return None


def detected_after(gathered: Gathered) -> float:
    """Return the seconds between the last sign and the detection.

    The guard's own line at the end is no sign of life: its last words say how long it had waited by then.
    """
    words, ended, at = gathered.evidence.last_words, gathered.evidence.exit, gathered.at
    if words:
        return float(words.get("waited") or 0) + max(0.0, at - float(words.get("time") or at))
    if ended is not None and ended.at:
        return max(0.0, at - ended.at)
    return gathered.symptom.since
