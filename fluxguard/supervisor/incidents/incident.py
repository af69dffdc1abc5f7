"""The incident: what happened, what was seen, why, and what was done. report.json is this; all else is made of it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fluxguard.launch import masking
from fluxguard.rundir import RunDir, read_json, write_json, write_whole
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.incidents import markdown, recorder
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.sensing.processes import Ending

_log = logging.getLogger(__name__)

FORMAT = 2
REPORT = "report.json"
MARKDOWN = "report.md"
LAST_LINES = "last-lines.txt"
STACKS = "stacks.txt"
GUARD_STACKS = "stacks-by-guard.txt"
RECORDER = "flight-recorder"

_LINES_KEPT = 60
_LONGEST_LINE = 2000
_LARGEST_FILE = 1 << 20
_BEYOND = 1e12
"""No step, and no time; NaN is not below it either."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """All that is known about one incident. A report of an older format loads too: what it lacks is empty."""

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
    """True step of the state that the next attempt starts from; None when the run stopped, or only the trainer
    knows it."""
    lost_steps: int
    """Steps to be trained again; 0 where that is not known."""
    words: str
    advice: str
    decision: str
    """What was done, and why."""
    symptom: Mapping[str, Any]
    ending: Mapping[str, Any]
    figures: Mapping[str, Any]
    """What else was seen: processes, memory, disk, GPU; `unknown` is written as such."""
    notes: Sequence[str] = ()
    """Why newer states were not used."""
    action: str = ""
    """restart, stop, or round where the ranks' own agent starts again; empty when not written down."""
    format: int = 1
    """Of the report; a report that does not say is of the first."""
    proof: Sequence[str] = ()
    """The lines, counters and figures that show the cause."""
    origin: str = ""
    """trainer, outside, machine or input; empty when not written down."""
    place: str = ""
    """Where it happened: two at one place by a cause from the trainer are not bad luck."""
    remedies: Sequence[str] = ()
    """What another attempt could do otherwise, mildest first."""
    remedy: str | None = None
    """What the next one does otherwise."""
    flags: Sequence[str] = ()
    """The flags that this changed."""
    troubles: Sequence[str] = ()
    """What was not as it should be in the attempt, though it went on."""
    state: str | None = None
    """The state that the next attempt starts from."""
    files: Sequence[str] = ()
    """What lies beside the report, by name."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Evidence that could not be taken, and why."""
    lines: Sequence[str] = ()
    """The last lines of the trainer."""
    timeline: Sequence[Mapping[str, Any]] = ()
    """Points before it: {at, attempt, phase, step, loss, ...}; what is unknown is left out."""

    @property
    def went_on(self) -> str:
        """How the run went on, in a few words."""
        if self.action == "round":
            return "its agent starts a new round"
        if self.action == "restart" and self.resumed_step is None:
            return "started again"
        return "stopped" if self.resumed_step is None else f"resumed at step {self.resumed_step}"

    @property
    def when(self) -> str:
        """The local time of its detection, for people."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))


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
    start_step: int | None
    """What the state holds from which the run goes on, or could; None where only the trainer knows."""
    figures: Mapping[str, Any]
    notes: Sequence[str]
    state: Path | None = None
    scene: Scene = field(default_factory=Scene)
    troubles: Sequence[str] = ()
    timeline: Sequence[Mapping[str, Any]] = ()


def of(case: Case) -> Incident:
    """Return the incident of a case."""
    decision, diagnosis, step = case.decision, case.diagnosis, case.evidence.step
    done = {"stop": "Stopped", "round": "Round ended"}.get(decision.action, "Restarted")
    wait = f", after {decision.after:.0f} s" if decision.after else ""
    restarts = decision.action == "restart"
    change = decision.change
    return Incident(
        number=case.number,
        at=case.at,
        attempt=case.attempt,
        cause=diagnosis.cause,
        phase=case.symptom.phase,
        step=step,
        detected_after_s=round(case.detected_after, 3),
        resumed_step=case.start_step if restarts else None,
        lost_steps=0 if case.start_step is None else max(0, step - case.start_step),
        words=diagnosis.words,
        advice=diagnosis.advice,
        decision=f"{done}{wait}: {decision.reason}.",
        symptom=asdict(case.symptom),
        ending=asdict(case.ending),
        figures=case.figures,
        action=decision.action,
        notes=tuple(case.notes),
        format=FORMAT,
        proof=tuple(diagnosis.proof),
        origin=diagnosis.origin,
        place=diagnosis.place,
        remedies=tuple(diagnosis.remedies),
        remedy=change.remedy if change else None,
        flags=tuple(change.flags) if change else (),
        troubles=tuple(case.troubles),
        state=case.state.name if case.state else None,
        missing=dict(case.scene.missing),
        lines=tuple(line[:_LONGEST_LINE] for line in case.evidence.lines[-_LINES_KEPT:]),
        timeline=tuple(case.timeline),
    )


def folder_for(run: RunDir, number: int) -> Path:
    """Return the folder of an incident."""
    return run.incidents / f"{number:04d}"


def write(
    run: RunDir, incident: Incident, evidence: Evidence, scene: Scene, dumps: Iterable[Path], secrets: frozenset[str]
) -> Path:
    """Write the report and what belongs to it, without secrets; return the path of the one a person reads.

    The report comes first. Raises OSError when it cannot be written; what lies beside it may be missing.
    """
    folder = folder_for(run, incident.number)
    folder.mkdir(parents=True, exist_ok=True)
    texts, dumps = _texts(run, evidence, scene), list(dumps)
    names = [*texts, *(f"{RECORDER}-{path.name}" for path in dumps)]
    values = masking.everywhere({**to_mapping(incident), "files": names}, secrets)
    write_json(folder / REPORT, values)
    path = folder / MARKDOWN
    known = of_mapping(values)
    write_whole(path, markdown.of(known or incident).encode())
    for name, text in texts.items():
        with contextlib.suppress(OSError):
            write_whole(folder / name, masking.mask(text, secrets).encode()[:_LARGEST_FILE])
    for dump in dumps:
        with contextlib.suppress(OSError):
            write_whole(folder / f"{RECORDER}-{dump.name}", recorder.copied(dump, secrets))
    return path


def _texts(run: RunDir, evidence: Evidence, scene: Scene) -> dict[str, str]:
    texts = {LAST_LINES: "\n".join(evidence.lines) + "\n"}
    if evidence.stacks:
        texts[STACKS] = "\n".join(f"process {pid}\n{stack}" for pid, stack in evidence.stacks.items())
    if evidence.last_words:
        with contextlib.suppress(OSError, ValueError, TypeError):
            by_guard = run.stacks(int(evidence.last_words.get("rank", 0)))
            texts[GUARD_STACKS] = by_guard.read_bytes()[:_LARGEST_FILE].decode("utf-8", "replace")
    return {**texts, **scene.files}


def read(path: Path) -> Incident | None:
    """Return the incident in a report.json of any format, or None when there is none that can be read."""
    values = read_json(path)
    return None if values is None else of_mapping(values)


def to_mapping(incident: Incident) -> dict[str, Any]:
    """Return plain values, as `of_mapping` reads them."""
    return asdict(incident)


def of_mapping(values: Mapping[str, Any]) -> Incident | None:
    """Return the incident that a report holds, or None when something it cannot do without is missing.

    What is unknown is passed over, and what is of the wrong kind counts as not written down.
    """
    found: dict[str, Any] = {}
    for one in fields(Incident):
        value = values.get(one.name)
        if _fits(str(one.type), value):
            found[one.name] = value
        elif one.default is MISSING and one.default_factory is MISSING:
            return None
    return Incident(**found)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "Sequence[str]": (list, tuple),
    "Sequence[Mapping[str, Any]]": (list, tuple),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, str]": (dict,),
}


def _fits(kind: str, value: object) -> bool:
    kind, _, other = kind.partition(" | ")
    if value is None:
        return other == "None"
    if isinstance(value, bool) or not isinstance(value, _KINDS[kind]):
        return False
    if isinstance(value, (int, float)):
        return abs(value) < _BEYOND
    if isinstance(value, (list, tuple)):
        inner = str if kind == "Sequence[str]" else dict
        return all(isinstance(one, inner) for one in value)
    return True


def numbers(run: RunDir) -> list[int]:
    """Return the numbers of the incidents that have a folder, in order."""
    try:
        return sorted(int(path.name) for path in run.incidents.iterdir() if path.name.isdigit())
    except OSError:
        return []
