"""The incident report: what happened, what was seen, why, and what was done about it; for a person in the morning."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fluxguard.heartbeat import Beat
from fluxguard.rundir import RunDir, write_json, write_whole
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.diagnosis import Diagnosis, Evidence
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.processes import Ending

_LINES_IN_REPORT = 25


@dataclass(frozen=True, kw_only=True)
class Incident:
    """All that is known about one incident; report.json is this, and everything else is made from it."""

    number: int
    at: float
    """When it was detected, seconds since the epoch."""
    attempt: int
    cause: str
    phase: str
    step: int
    """True steps when it happened."""
    detected_after_s: float
    """Seconds between the last beat or output (or the end, when the attempt ended) and the detection."""
    resumed_step: int | None
    """True step of the state that the next attempt starts from; None when the run stopped."""
    lost_steps: int
    """Steps to be trained again."""
    words: str
    advice: str
    decision: str
    """What was done, and why."""
    symptom: Mapping[str, Any]
    ending: Mapping[str, Any]
    figures: Mapping[str, Any]
    """What else was seen: processes, memory, disk, GPU."""
    notes: Sequence[str] = ()
    """Why newer states were not used."""


def folder_for(run: RunDir, number: int) -> Path:
    """Return the folder of an incident."""
    return run.incidents / f"{number:04d}"


def write(run: RunDir, incident: Incident, evidence: Evidence, beat: Beat | None) -> Path:
    """Write the report and what belongs to it; return the path of the one a person reads."""
    folder = folder_for(run, incident.number)
    folder.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(evidence.lines)
    write_whole(folder / "last-lines.txt", (lines + "\n").encode())
    if evidence.stacks:
        text = "\n".join(f"process {pid}\n{stack}" for pid, stack in evidence.stacks.items())
        write_whole(folder / "stacks.txt", text.encode())
    if evidence.last_words:
        guard_stacks = run.stacks(int(evidence.last_words.get("rank", 0)))
        if guard_stacks.exists():
            write_whole(folder / "stacks-by-guard.txt", guard_stacks.read_bytes())
    if beat is not None:
        values = {**asdict(beat), "attempt": beat.attempt.hex()}
        write_whole(folder / "heartbeat.json", json.dumps(values, indent=2, default=str).encode())
    write_json(folder / "report.json", asdict(incident))
    report = folder / "report.md"
    write_whole(report, markdown(incident, evidence.lines).encode())
    return report


def markdown(incident: Incident, lines: Sequence[str] = ()) -> str:
    """Return the report for a person."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(incident.at))
    resumed = "the run stopped" if incident.resumed_step is None else f"step {incident.resumed_step}"
    parts = [
        f"# Incident {incident.number}: {incident.cause}",
        "",
        incident.words,
        "",
        *([f"**What you can do.** {incident.advice}", ""] if incident.advice else []),
        f"**What was done.** {incident.decision}",
        "",
        "| | |",
        "|---|---|",
        f"| when | {when} |",
        f"| attempt | {incident.attempt} |",
        f"| phase | {incident.phase} |",
        f"| step | {incident.step} |",
        f"| detected after | {incident.detected_after_s:.1f} s |",
        f"| resumed at | {resumed} |",
        f"| steps to train again | {incident.lost_steps} |",
        *(f"| {name} | {value} |" for name, value in incident.figures.items()),
        "",
    ]
    if incident.notes:
        parts += ["Newer states that were not used:", "", *(f"- {note}" for note in incident.notes), ""]
    if lines:
        parts += ["Last lines of the trainer:", "", "```", *lines[-_LINES_IN_REPORT:], "```", ""]
    return "\n".join(parts)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an incident is made from."""

    number: int
    at: float
    attempt: int
    symptom: Symptom
    diagnosis: Diagnosis
    decision: Decision
    ending: Ending
    evidence: Evidence
    detected_after: float
    start_step: int
    """What the state holds from which the run goes on, or could."""
    figures: Mapping[str, Any]
    notes: Sequence[str]


def of(case: Case) -> Incident:
    """Return the incident of a case."""
    decision, step = case.decision, case.evidence.step
    done = "Stopped" if decision.action == "stop" else "Restarted"
    wait = f", after {decision.after:.0f} s" if decision.after else ""
    return Incident(
        number=case.number,
        at=case.at,
        attempt=case.attempt,
        cause=case.diagnosis.cause,
        phase=case.symptom.phase,
        step=step,
        detected_after_s=round(case.detected_after, 3),
        resumed_step=case.start_step if decision.action == "restart" else None,
        lost_steps=max(0, step - case.start_step),
        words=case.diagnosis.words,
        advice=case.diagnosis.advice,
        decision=f"{done}{wait}: {decision.reason}.",
        symptom=asdict(case.symptom),
        ending=asdict(case.ending),
        figures=case.figures,
        notes=tuple(case.notes),
    )
