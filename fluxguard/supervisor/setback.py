"""What follows an attempt that did not reach the end: evidence, the end of what still lives, a judgement, a report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.launch import masking
from fluxguard.launch.command import Refusal
from fluxguard.launch.remedies import Change
from fluxguard.limits import Limits
from fluxguard.rundir import AGAIN, RunDir
from fluxguard.supervisor import debugging, distrust, finish, noticing, record, rounds
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence, diagnose
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.detecting.troubles import troubles
from fluxguard.supervisor.incidents import collectives, evidence, incident, recorder, scrubbing, slices
from fluxguard.supervisor.incidents.bounded import Task
from fluxguard.supervisor.incidents.incident import Case
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.policy import Decision, Setback, decide, dice
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.rounds import Hung
from fluxguard.supervisor.sensing import machine, processes, rendezvous
from fluxguard.supervisor.sensing.rendezvous import Door
from fluxguard.supervisor.trainee import Trainee

_log = logging.getLogger(__name__)

_BESIDE = 5.0
"""Seconds that reading or rewriting a few megabytes beside the report may take, on a disk that is busy."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everything that was seen of an attempt before, while and after it was ended."""

    attempt: Attempt
    symptom: Symptom
    history: History
    evidence: Evidence
    figures: Mapping[str, str]
    ending: processes.Ending
    at: float
    """When it was detected, seconds since the epoch."""
    scene: Scene = field(default_factory=Scene)
    """What else was taken before the end."""
    dumps: tuple[Path, ...] = ()
    """What the collectives have left."""
    secrets: frozenset[str] = frozenset()
    """What nothing may hold that is written."""


def gather(
    run: RunDir,
    attempt: Attempt,
    symptom: Symptom,
    history: History,
    trainee: Trainee,
    lines: list[str],
    clock: Clock,
    limits: Limits,
    *,
    only: Hung | None = None,
) -> Gathered:
    """Collect what is to be seen, then end what still lives of the attempt and wait for its GPU memory.

    `only` is what is to be ended of an attempt that goes on; it is asked first, and nothing is waited for then.
    """
    at, watch = clock.wall(), limits.watch
    taken = evidence.take(run, attempt, symptom, history, clock, watch)
    beat = rounds.last_beat(run, attempt, history.last)
    step = attempt.true_step(beat, history.last.shown, hardened=trainee.hardened)
    seen = masking.everywhere(taken.evidence, trainee.secrets)
    told = tuple(masking.mask(trouble.text, trainee.secrets) for trouble in troubles(history, limits))
    lines = masking.lines(lines, trainee.secrets)
    seen = replace(seen, step=step, lines=lines, troubles=told, foreign=trainee.foreign)
    seen = replace(seen, debugging=debugging.detailed(run, trainee.env))
    figures = dict(taken.figures)
    if door := _door(trainee, watch.evidence):
        figures["rendezvous"] = door.words
        seen = replace(seen, rendezvous=(door.words,) if door.gone else ())
    if only is not None and (gone := only.ask(run, _why(symptom), clock)):
        figures["ended when asked"] = f"rank {', '.join(map(str, gone))} (exit code {AGAIN}, or by their agent)"
    find = only.find if only is not None else attempt.processes
    ending = processes.end(find, clock, grace=watch.grace, reap=watch.reap)
    if only is None:
        pids = [pid for pid, _, _ in seen.usage.states] if seen.usage else []
        machine.wait_for_gpu_memory(pids, clock, longest=watch.memory, ask=watch.evidence)
    if ending.left:
        figures["still there"] = f"process {', '.join(map(str, ending.left))} (inside the kernel; no signal ends it)"
    since = rounds.began(attempt, history.last.ranks or attempt.beats(run)) if trainee.elastic else attempt.at
    dumps = tuple(recorder.dumps(trainee.env, since, recorder.prefix(run)))
    said, _ = Task("flight recorder", lambda: collectives.told(dumps)).result(_BESIDE if dumps else 0.0)
    if isinstance(said, tuple):
        seen = replace(seen, collectives=masking.everywhere(said, trainee.secrets))
    return Gathered(
        attempt=attempt,
        symptom=symptom,
        history=history,
        evidence=seen,
        figures=figures,
        ending=ending,
        at=at,
        scene=taken.scene,
        dumps=dumps,
        secrets=trainee.secrets,
    )


def _why(symptom: Symptom) -> str:
    return f"{symptom.kind} for {symptom.since:.0f} s in phase '{symptom.phase}'"


def _door(trainee: Trainee, seconds: float) -> Door | None:
    """Return how the address of the rendezvous is, where several machines meet at one; what hangs is no answer."""
    at = trainee.ranks
    if at is None or not at.several or not at.host:
        return None
    found, why = Task("rendezvous", lambda: rendezvous.look(at.host, at.port, seconds / 2)).result(seconds)
    return found if isinstance(found, Door) else Door(f"{at.endpoint}: {why}", gone=False)


def explain(gathered: Gathered, known: Diagnosis | None) -> Diagnosis:
    """Return why it happened, without secrets; `known` is what was found out already."""
    found = finish.better(known, lambda: diagnose(gathered.symptom, gathered.evidence))
    return _without_secrets(found, gathered.secrets)


def distrusts(gathered: Gathered, diagnosis: Diagnosis) -> str:
    """Return why the state that it started from is not to be used again, or an empty text."""
    phase = gathered.symptom.phase if gathered.symptom.kind == "ended" else ""
    start_step, step = gathered.attempt.start_step, gathered.evidence.step
    return distrust.why(diagnosis, phase=phase, start_step=start_step, step=step)


def judge(
    gathered: Gathered,
    diagnosis: Diagnosis,
    start: Restart,
    earlier: list[Setback],
    limits: Limits,
    offers: Callable[[Diagnosis], Sequence[Change]] = lambda _: (),
) -> tuple[Setback, Decision]:
    """Return how it counts, and what is done about it. Pure, but for what `offers` looks up."""
    step = gathered.evidence.step
    setback = Setback(
        cause=diagnosis.cause,
        origin=diagnosis.origin,
        place=diagnosis.place,
        step=step,
        progressed=step > max((one.step for one in earlier), default=0),
    )
    chance = dice(gathered.attempt.uuid)
    decision = decide(diagnosis, [*earlier, setback], limits, offers=offers(diagnosis), chance=chance)
    if decision.action == "restart" and isinstance(start.argv, Refusal):
        decision = Decision(action="stop", reason=start.argv.reason)
    return setback, decision


def _without_secrets(diagnosis: Diagnosis, secrets: frozenset[str]) -> Diagnosis:
    """Hide secrets in what people read; cause, place and remedies are compared, and made of what was masked before."""
    shown = {name: masking.everywhere(getattr(diagnosis, name), secrets) for name in ("words", "advice", "proof")}
    return replace(diagnosis, **shown)


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
            number=_number(run, ledger),
            at=gathered.at,
            attempt=gathered.attempt.number,
            symptom=gathered.symptom,
            diagnosis=diagnosis,
            decision=decision,
            ending=gathered.ending,
            evidence=gathered.evidence,
            detected_after=detected_after(gathered),
            start_step=None if start.by_itself else start.step,
            figures=gathered.figures,
            notes=start.notes,
            state=start.state.path if start.state else None,
            scene=gathered.scene,
            troubles=noticing.words(ledger.events, gathered.attempt.uuid, gathered.history.last.beat),
            timeline=_timeline(run, gathered.at),
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


def _number(run: RunDir, ledger: Ledger) -> int:
    """Return the next number: a full disk may have kept a line of the ledger, and no report is overwritten."""
    return max(record.incidents(ledger.events), *incident.numbers(run), 0) + 1


def _timeline(run: RunDir, at: float) -> Sequence[Mapping[str, Any]]:
    """Return what the picture shows; what is wrong with it costs the picture."""
    found, why = Task("timeline", lambda: slices.before(run, at)).result(_BESIDE)
    if why:
        _log.debug("the timeline is %s", why)
    return found if isinstance(found, tuple) else ()


def _write(run: RunDir, ledger: Ledger, gathered: Gathered, written: incident.Incident) -> Path | None:
    """Write the report, with what a full disk gives back when it must; return where it is.

    Whatever is wrong with a report costs the report, never what is done about the incident.
    """
    Task("scrubbing", lambda: scrubbing.scrub(run, gathered.secrets)).result(_BESIDE)
    for _ in range(2):
        try:
            return incident.write(run, written, gathered.evidence, gathered.scene, gathered.dumps, gathered.secrets)
        except OSError as error:
            ledger.give_way()
            _log.debug("the report of incident %d cannot be written: %s", written.number, error)
        except Exception:  # noqa: BLE001 - our own failure to describe a death must not be another
            _log.exception("the report of incident %d cannot be made", written.number)
            return None
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
