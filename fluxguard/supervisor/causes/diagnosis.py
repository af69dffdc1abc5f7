"""From a symptom and the evidence to a cause in plain words. Pure: rules in order, the first that fits speaks.

What is known about causes is data, in `causes`; the rules say which kind of evidence counts before which.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fluxguard.launch.remedies import NO_SAMPLING
from fluxguard.supervisor.causes import BY_NAME, CAUSES, exits, hangs, outside, ranks, several, signatures, wording
from fluxguard.supervisor.causes.cause import Cause, Ends, Says, Seen, Told, Waits
from fluxguard.supervisor.causes.signatures import MACHINE, TRAINER, Line, shortened
from fluxguard.supervisor.causes.watched import WATCHED
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.sensing.processes import Usage

if TYPE_CHECKING:
    from fluxguard.supervisor.sensing.gpu import Card
    from fluxguard.supervisor.sensing.host import Host

_OF_NO_RANKS = tuple(cause for cause in CAUSES if cause.name not in several.OF_RANKS)
_P = TypeVar("_P", Ends, Says, Seen, Told, Waits)

_REPEATED = 5
"""As often an error has to be said to be worth a mention."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was collected when the symptom came."""

    exit: Exit | None = None
    last_words: Mapping[str, Any] | None = None
    """What the guard wrote before it ended the process."""
    lines: Sequence[str] = ()
    """The last lines of the output."""
    usage: Usage | None = None
    workers: frozenset[int] = frozenset()
    """Those processes that are DataLoader workers."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """Python stacks by process."""
    step: int = 0
    """True steps when it happened."""
    disk_full: bool = False
    """Nothing can be written where the run saves, the trainer's own last words included."""
    out_of_memory: bool = False
    """The kernel killed something for memory since the attempt began."""
    cards: Sequence[Card] | None = None
    """The GPUs when they were last seen; None for unknown."""
    host: Host | None = None
    """The machine's memory when it was last seen; None for unknown."""
    xids: Sequence[str] = ()
    """What the GPU driver reported since the attempt began, as in the system log."""
    troubles: Sequence[str] = ()
    """What else was not as it should be while the attempt went on, in words."""
    rendezvous: tuple[str, ...] = ()
    """That the machine which holds the rendezvous does not answer, in words; nothing where it does, or none does."""
    collectives: Sequence[str] = ()
    """What the flight recorders of the ranks say together, in words: which rank lacks which collective."""
    debugging: bool = False
    """Whether its ranks debugged their collectives in detail."""
    foreign: bool = False
    """Whether the trainer is not known: flags of sd-scripts are no advice for it."""
    system: str = sys.platform
    """The platform that all this was seen on."""

    @cached_property
    def closing(self) -> signatures.Closing:
        """The lines that tell how it ended."""
        return signatures.closing(self.lines)

    @cached_property
    def how(self) -> exits.How:
        """How the process ended."""
        return exits.how(self.exit, self.closing.whole)

    def ended_with(self, numbers: frozenset[int]) -> bool:
        """Return whether it ended by one of these signals (negative) or codes."""
        return self.how.number in numbers

    def stopped(self, symptom: Symptom) -> tuple[str, ...]:
        """Return, in words, which processes of a run without progress are stopped."""
        if symptom.kind == "ended" or self.usage is None or not self.usage.stopped:
            return ()
        pids = ", ".join(map(str, self.usage.stopped))
        return (f"Process {pids} was stopped and did nothing for {symptom.since:.0f} s",)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why an attempt ended or had to be ended."""

    cause: str
    """A few words that name the cause, the same in the ledger, the report and the page."""
    words: str
    """What happened, for the person who finds it in the morning."""
    advice: str = ""
    """What that person can do."""
    origin: str = TRAINER
    """trainer, outside, machine or input."""
    again: bool = True
    """Whether another attempt can end differently."""
    place: str = ""
    """Where: two deaths at one place by a cause from the trainer are not bad luck."""
    proof: tuple[str, ...] = ()
    """The lines, counters and figures that show it, each as a person may read it."""
    remedies: tuple[str, ...] = ()
    """What another attempt may do otherwise, mildest first: names of `launch.remedies`."""
    sure: bool = True
    """Whether the evidence leaves no other reading."""


def diagnose(symptom: Symptom, evidence: Evidence) -> Diagnosis:
    """Return why, in words; the last rule always speaks."""
    rules = _ENDED if symptom.kind == "ended" else _ALIVE
    said = (rule(symptom, evidence) for rule in rules)
    found = next((one for one in said if one is not None), None) or _unexplained(symptom, evidence)
    found = _changed(found, **several.changes(found, symptom, evidence))
    return _changed(found, advice=hangs.for_foreign(found.advice)) if evidence.foreign else found


def named(name: str, said: str = "", *, what: str = "", place: str = "", proof: Sequence[str] = ()) -> Diagnosis:
    """Return the diagnosis of a cause that was found elsewhere, by its name in the table."""
    cause = BY_NAME[name]
    shown = signatures.shortened(said)
    return Diagnosis(
        cause=cause.name.format(what=what),
        words=wording.ended(cause.words.format(said=shown, what=what)),
        advice=cause.advice,
        origin=cause.origin,
        again=cause.again,
        place=place or (cause.name if cause.fixed else wording.place(shown)),
        proof=tuple(proof) or ((shown,) if shown else ()),
        remedies=cause.remedies,
        sure=cause.sure,
    )


def _of(cause: Cause, symptom: Symptom, evidence: Evidence, said: str, **values: Any) -> Diagnosis:
    """Return the diagnosis of a cause; what happened while sampling can be left out of another attempt."""
    found = named(cause.name, said, **values)
    changes: dict[str, Any] = {}
    ours = cause.origin in (TRAINER, MACHINE) and (cause.again or cause.remedies)
    if ours and symptom.kind == "ended" and _while_sampling(symptom, evidence):
        changes["remedies"] = tuple(dict.fromkeys((NO_SAMPLING, *found.remedies)))
        changes["words"] = f"{found.words.rstrip('.')}, while it made a sample image."
    if not found.place:
        changes["place"] = f"step {evidence.step}"
    return _changed(found, **changes)


def _changed(found: Diagnosis, **changes: Any) -> Diagnosis:
    return Diagnosis(**{**found.__dict__, **changes})


_SAMPLES = re.compile(r"\bin (?:sample_images\w*|sample_image_inference)\b")


def _while_sampling(symptom: Symptom, evidence: Evidence) -> bool:
    if evidence.closing.raised:
        return any(_SAMPLES.search(text) for text in evidence.closing.texts)
    return symptom.phase == "sampling"


def _told(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """The guard knew what it waited for: it is believed first."""
    said = evidence.last_words
    if not said:
        return None
    name = str(said.get("cause", "wait"))
    cause, proof = next(
        ((cause, proof) for cause, proof in _proofs(Told) if proof.cause == name),
        (BY_NAME["wait"], next(proof for cause, proof in _proofs(Told) if cause.name == "wait")),
    )
    what = wording.sentence(str(said.get("what", "a wait")))
    values = {
        "what": what,
        "waited": float(said.get("waited") or 0),
        "limit": float(said.get("limit") or 0),
        "wait": said.get("what") or "barrier",
        "file": said.get("file") or "a file",
        "workers": ", ".join(map(str, said.get("workers") or ())) or "unknown",
    }
    return Diagnosis(
        cause=name,
        words=f"{what}." if said.get("said") else proof.words.format(**values),
        advice=cause.advice + _goes_on(cause, said),
        origin=cause.origin,
        again=cause.again and said.get("verdict") != "never",
        place=str(said.get("file") or (not said.get("said") and said.get("what")) or name),
        proof=(f"the guard's last words: {shortened(str(said.get('what', name)))}",),
        remedies=cause.remedies,
    )


def _goes_on(cause: Cause, said: Mapping[str, Any]) -> str:
    if cause.name != "loss not finite":
        return ""
    state = said.get("file")
    return f" Then go on from {state}." if state else " Then start again: no good state was saved."


def _seen(symptom: Symptom, evidence: Evidence, *, late: bool = False) -> Diagnosis | None:
    """Counters and figures are what no text can be wrong about."""
    for cause, proof in _proofs(Seen):
        if proof.late == late and (found := proof.find(symptom, evidence)):
            return _of(cause, symptom, evidence, found[0], proof=(*found, *filter(None, (evidence.how.proof,))))
    return None


def _seen_late(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    return _seen(symptom, evidence, late=True)


_SUDDEN = frozenset({-1, -4, -7, -8, -9, -11, -15, 0xC0000005})
"""Ends that come in the middle of whatever goes on; an abort may come from what an error leaves behind."""


def _raised_line(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """An error ends a trainer; one that said more behind it and then ended suddenly had survived that error."""
    end = evidence.closing
    if not end.raised:
        return None
    if end.behind and not end.rank_raised and evidence.ended_with(_SUDDEN):
        said = _by_line(symptom, evidence, end.behind, echo=False)
        return said or _killed(symptom, evidence) or _crashed(symptom, evidence)
    return _line(symptom, evidence)


def _line(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """The latest line counts: what reads like a cause before it was mostly survived, or is followed by this one."""
    return _by_line(symptom, evidence, evidence.closing.lines, echo=False)


def _echo(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """A line that follows from another end counts only when nothing else was said, not even earlier."""
    end = evidence.closing
    found = _by_line(symptom, evidence, [*end.context, *end.lines], echo=True)
    if found is None or found.cause not in ranks.OWN:
        return found and (_by_line(symptom, evidence, end.said, echo=False) or found)
    crashed = evidence.how.rank is not None and evidence.ended_with(_SUDDEN)  # that rank is the one that is missed
    said = _by_line(symptom, evidence, end.said, echo=False, causes=_OF_NO_RANKS)
    return (crashed and _crashed(symptom, evidence)) or said or found


def _by_line(
    symptom: Symptom, evidence: Evidence, lines: Sequence[Line], *, echo: bool, causes: Sequence[Cause] = CAUSES
) -> Diagnosis | None:
    proofs = [(cause, proof) for cause, proof in _proofs(Says, causes) if proof.echo == echo]
    for line in reversed([line for line in lines if not line.warns]):
        for cause, proof in proofs:
            if found := proof.pattern.search(line.text):
                said = line.text if proof.whole else found[0]
                return _of(cause, symptom, evidence, said.strip(), proof=(shortened(line.text),))
    return None


def _killed(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """Who ends a trainer from outside may say so, a launcher or a page; else the signal speaks."""
    said = _by_line(symptom, evidence, evidence.closing.whole, echo=False, causes=outside.CAUSES)
    found = said or _by_end(symptom, evidence, outside.CAUSES)
    if found and found.cause == outside.SIGKILL:
        return _changed(found, **outside.for_memory(symptom, evidence))
    return found


def _unseen(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """A keeper outlives its trainer: where it is gone too, both were ended."""
    if evidence.exit is None or not evidence.exit.unknown or evidence.how.number is not None:
        return None
    return _of(BY_NAME[outside.UNSEEN], symptom, evidence, "", proof=("neither the trainer nor its keeper is there",))


def _crashed(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    return _by_end(symptom, evidence, CAUSES)


def _by_end(symptom: Symptom, evidence: Evidence, causes: Sequence[Cause]) -> Diagnosis | None:
    number = evidence.how.number
    for cause in causes:
        if any(isinstance(proof, Ends) and number in proof.codes for proof in cause.shown):
            return _of(cause, symptom, evidence, "", proof=(evidence.how.proof,))
    return None


_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit|Warning))(?:: .*)?$")


def _raised(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """An error that no row of the table knows still has a name."""
    for line in reversed(evidence.closing.lines):
        found = _ERROR.search(line.text)
        if found and not any(name in line.text for name in signatures.LAUNCHER):
            where = "error in sampling" if _while_sampling(symptom, evidence) else "error in the trainer"
            place = f"step {evidence.step}: {found[1]}"
            return _of(BY_NAME[where + " ({what})"], symptom, evidence, line.text.strip(), what=found[1], place=place)
    return None


_COMPLAINT = re.compile(r"(?i)\b(?:error|exception|failed|failure|fatal)\b")


def _repeated(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    said = Counter(wording.place(line.text.strip()) for line in evidence.closing.said if _COMPLAINT.search(line.text))
    text, times = said.most_common(1)[0] if said else ("", 0)
    if times < _REPEATED:
        return None
    cause = BY_NAME["the same error again and again"]
    return _of(cause, symptom, evidence, text, proof=(f"{times} times: {shortened(text)}",))


def _watched(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """The user's own patterns; one that says so stops the run."""
    if symptom.kind != "watched log":
        return None
    reason = symptom.what.removeprefix(f"{symptom.name}: ")
    found = named(WATCHED, reason, what=symptom.name, place=f"watched log: {symptom.name}")
    return _changed(found, again=symptom.then != "stop")


def _waiting(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """The wait that the trainer said it began."""
    for cause, proof in _proofs(Waits):
        general = cause.name == "wait" and symptom.kind != "overdue"
        if proof.opens and not general and symptom.what and proof.opens.search(symptom.what):
            return _without_progress(cause, symptom, evidence, f"it waits for: {symptom.what}")
    return None


def _in_stacks(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    return _in(evidence.stacks.values(), symptom, evidence, CAUSES)


def _in_late_stacks(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    """The others only wait: what the rank does that they wait for counts for more."""
    texts = [evidence.stacks[pid] for pid in symptom.late if pid in evidence.stacks]
    return _in(texts, symptom, evidence, _OF_NO_RANKS)


def _in(texts: Iterable[str], symptom: Symptom, evidence: Evidence, causes: Sequence[Cause]) -> Diagnosis | None:
    text = "\n".join(texts)
    for cause, proof in _proofs(Waits, causes):
        for function in proof.frames:
            # As py-spy, with the class or without it, and faulthandler write a frame; the command line above the frames
            # holds flags of these names.
            if found := re.search(rf"^\s+(?:[\w.<>]+\.)?{function} \(.*$|^.*\bin {function}$", text, re.MULTILINE):
                return _without_progress(cause, symptom, evidence, f"a stack stands in {found[0].strip()}")
    return None


def _without_progress(cause: Cause, symptom: Symptom, evidence: Evidence, proof: str) -> Diagnosis:
    found = _of(cause, symptom, evidence, symptom.what or proof, proof=(proof, *symptom.signs), place=cause.name)
    return _changed(found, words=f"{found.words} Nothing moved for {symptom.since:.0f} s.")


Rule = Callable[[Symptom, Evidence], "Diagnosis | None"]

_ENDED: tuple[Rule, ...] = (_told, _seen, _raised_line, _killed, _line, _echo, _raised, _unseen, _crashed, _repeated)
_ALIVE: tuple[Rule, ...] = (_told, _watched, _seen, _in_late_stacks, _waiting, _in_stacks, _seen_late)


def _unexplained(symptom: Symptom, evidence: Evidence) -> Diagnosis:
    if symptom.kind == "ended":
        how = evidence.how
        place = f"step {evidence.step}: {how.number}"
        proof = tuple(filter(None, (how.proof,)))
        return _of(BY_NAME["ended without a word"], symptom, evidence, str(how), place=place, proof=proof)
    moving = "although it still used the processor or the disk" if symptom.kind == "stuck" else "and did nothing at all"
    waiting = f" It was waiting for: {symptom.what}." if symptom.what else ""
    row = BY_NAME.get(f"no progress ({symptom.phase})")
    return Diagnosis(
        cause=f"no progress ({symptom.phase})",
        words=f"The training made no progress for {symptom.since:.0f} s in phase '{symptom.phase}', {moving}.{waiting}",
        advice=row.advice if row else "The stacks of its processes are in the report.",
        remedies=row.remedies if row else (),
        place=f"step {evidence.step}: {symptom.phase}",
        proof=(wording.moveless(symptom.since, symptom.limit), *symptom.signs, *evidence.troubles),
        sure=False,
    )


def _proofs(kind: type[_P], causes: Sequence[Cause] = CAUSES) -> Iterator[tuple[Cause, _P]]:
    return ((cause, proof) for cause in causes for proof in cause.shown if isinstance(proof, kind))
