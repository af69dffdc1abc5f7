"""Explains why a training ended, from any log or from the folder of a run. The judgement is pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch import masking
from fluxguard.rundir import FOLDER, RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger, surroundings
from fluxguard.supervisor.causes import BY_NAME, ending, logfile, numbers, outside, signatures
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence, diagnose, named
from fluxguard.supervisor.causes.exits import How
from fluxguard.supervisor.causes.logfile import LogLine
from fluxguard.supervisor.causes.signatures import shortened
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.incidents import evidence as evidences
from fluxguard.supervisor.incidents import incident as incidents
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.sensing.output import Shown, shown_after
from fluxguard.supervisor.showing import status

EXPLAINED, FINISHED, RUNNING, STOPPED, NOTHING = "explained", "finished", "running", "stopped", "nothing"
"""What there is to say: a cause, the end of a training, one that goes on, one that was stopped on request, nothing."""

_SAVED = re.compile(r"\bmodel saved\.")
_LOGS = ("*.log", "*.log.txt", "nohup.out", "*.out")


@dataclass(frozen=True, kw_only=True)
class Quote:
    """A line, counter or figure that shows it."""

    text: str
    line: int | None = None
    """Its number in the log; None where it is no line of it, or the log is too long to count."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What is to be said about the end of a training."""

    source: str
    """The log or folder that it is about."""
    verdict: str
    """explained, finished, running, stopped or nothing."""
    words: str
    cause: str = ""
    """As in the table of causes; empty when there is none."""
    advice: str = ""
    sure: bool = True
    """Whether the evidence leaves no other reading."""
    proof: tuple[Quote, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def of_lines(source: str, lines: Sequence[LogLine]) -> Explanation:
    """Return what the lines of a log say about its end. Pure."""
    texts = [line.text for line in lines]
    shown = shown_after(Shown(), (signatures.plain(text) for text in texts))
    found = diagnose(Symptom(kind="ended", phase=shown.phase, since=0.0), Evidence(lines=texts, step=shown.bar))
    if found.cause == ending.UNKNOWN and shown.loss is not None and not math.isfinite(shown.loss):
        bar = next((line.text for line in reversed(lines) if "loss=" in line.text), "")
        return _explained(source, named(numbers.NOT_FINITE, proof=[shortened(signatures.plain(bar))]), lines)
    if finish := _finish(source, found, lines):
        return finish
    if found.cause == ending.UNKNOWN:
        return Explanation(source=source, verdict=NOTHING, words=_nothing(found, shown), sure=False, proof=_last(lines))
    if found.advice == outside.NOTHING:
        found = replace(found, advice=outside.UNSUPERVISED)
    return _explained(source, found, lines)


def _explained(source: str, found: Diagnosis, lines: Sequence[LogLine]) -> Explanation:
    return Explanation(
        source=source,
        verdict=EXPLAINED,
        words=found.words,
        cause=found.cause,
        advice=found.advice,
        sure=found.sure,
        proof=tuple(_quoted(found.proof, lines)),
    )


def _nothing(found: Diagnosis, shown: Shown) -> str:
    where = f" It ends at step {shown.bar} of {shown.planned or shown.total or '?'}." if shown.bar else ""
    how = f" Its process ended: {shortened(found.proof[0])}." if found.proof and found.proof[0] != str(How()) else ""
    return f"Nothing in this log explains an end: the training may still run, or was ended without a word.{where}{how}"


def _last(lines: Sequence[LogLine]) -> tuple[Quote, ...]:
    return tuple(Quote(text=shortened(line.text), line=line.number) for line in lines[-1:])


def _finish(source: str, found: Diagnosis, lines: Sequence[LogLine]) -> Explanation | None:
    """Return that it looks finished, when nothing came behind the final save: no other run, and no cause."""
    at = next((index for index in range(len(lines) - 1, -1, -1) if _SAVED.search(lines[index].text)), None)
    if at is None or signatures.went_on([line.text for line in lines[at + 1 :]]):
        return None
    behind = [shortened(signatures.plain(line.text)) for line in lines[at + 1 :]]
    if found.cause != ending.UNKNOWN and any(proof in line for proof in found.proof for line in behind):
        return None
    words = "It looks finished: the last thing the trainer did was to save its final weights."
    saved = Quote(text=shortened(lines[at].text), line=lines[at].number)
    return Explanation(source=source, verdict=FINISHED, words=words, sure=False, proof=(saved,))


def _quoted(proof: Iterable[str], lines: Sequence[LogLine]) -> Iterator[Quote]:
    """Yield the proofs with the numbers of those that are lines: the last ones that say so."""
    said = [(line.number, " ".join(signatures.plain(line.text).split())) for line in reversed(lines)]
    for text in proof:
        part = text.removesuffix("...")
        yield Quote(text=text, line=next((number for number, other in said if part in other), None))


def explain(path: Path) -> Explanation:
    """Return what a log or a folder says about the end of a training, without secrets.

    Raises InputError when there is nothing to read.
    """
    found = _of_folder(path) if path.is_dir() else of_lines(str(path), logfile.read(path))
    return _masked(found)


def _masked(found: Explanation) -> Explanation:
    return replace(
        found,
        words=masking.mask(found.words),
        advice=masking.mask(found.advice),
        proof=tuple(replace(quote, text=masking.mask(quote.text)) for quote in found.proof),
    )


def _of_folder(path: Path) -> Explanation:
    run = RunDir(path.parent if path.name == FOLDER else path)
    if not run.ledger.exists():  # of several machines the one that has told last
        run = max(run.nodes(), key=lambda one: _changed(one.ledger), default=run)
    events = ledger.read(run.ledger)
    if events:
        return _of_run(run, events)
    logs = [log for pattern in _LOGS for log in path.glob(pattern) if log.is_file()]
    if run.log.is_file():
        logs.append(run.log)
    if not logs:
        raise InputError(path, "holds no run of fluxguard and no log")
    newest = max(logs, key=_changed)
    return of_lines(str(newest), logfile.read(newest))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _of_run(run: RunDir, events: Sequence[Event]) -> Explanation:
    """A run that fluxguard watched: what it wrote down at the time knew more than a log."""
    seen, source = status.read(run), str(run.output_dir)
    state = seen.state if seen else STOPPED
    if seen and state == FINISHED:
        return Explanation(source=source, verdict=FINISHED, words=_sentence(seen.reason))
    attempt = attempts.last(run, events)
    newest = ledger.newest(events, "incident", "attempt")
    if seen and state == RUNNING:
        words = f"It is running: {seen.phase or 'starting'}, step {seen.step} of {seen.planned_steps or '?'}."
        return Explanation(
            source=source, verdict=RUNNING, words=words, proof=tuple(Quote(text=one) for one in seen.troubles)
        )
    if newest is not None and newest.kind == "incident":
        return _of_incident(run, newest, source)
    if attempt is None or attempts.closed(events, attempt.uuid):
        return Explanation(source=source, verdict=STOPPED, words=_sentence(seen.reason) if seen else "It never began.")
    return _unjudged(run, attempt, source)


def _of_incident(run: RunDir, event: Event, source: str) -> Explanation:
    known = incidents.read(incidents.folder_for(run, int(event.values["number"])) / incidents.REPORT)
    values = event.values
    return Explanation(
        source=source,
        verdict=EXPLAINED if str(values["cause"]) != ending.UNKNOWN else NOTHING,
        words=known.words if known else str(values.get("words", "")),
        cause=str(values["cause"]),
        advice=known.advice if known else str(values.get("advice", "")),
        sure=BY_NAME[str(values["cause"])].sure if str(values["cause"]) in BY_NAME else True,
        proof=tuple(Quote(text=text) for text in known.proof) if known else (),
    )


def _unjudged(run: RunDir, attempt: attempts.Attempt, source: str) -> Explanation:
    """The end of an attempt that no supervisor saw: its keeper and its guard left what they knew."""
    lines = logfile.read(run.log) if run.log.is_file() and os.path.getsize(run.log) else []
    if restarted := surroundings.restarted(run, attempt):
        return _explained(source, restarted, lines)
    beats = attempt.beats(run)
    shown = shown_after(Shown(), (line.text for line in lines))
    found = diagnose(
        Symptom(kind="ended", phase=beats[0].phase if beats else shown.phase, since=0.0),
        Evidence(
            exit=attempt.exit(run),
            last_words=evidences.last_words(run, attempt),
            lines=[line.text for line in lines],
            step=attempt.true_step(beats[0] if beats else None, shown, hardened=bool(beats)),
        ),
    )
    if found.cause == ending.UNKNOWN:
        return Explanation(source=source, verdict=NOTHING, words=found.words, sure=False, proof=_last(lines))
    return _explained(source, found, lines)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
