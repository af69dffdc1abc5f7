"""From a symptom and the evidence to a cause in plain words. Pure: rules in order, the first that fits speaks."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxguard.rundir import NEVER
from fluxguard.supervisor.detectors import Symptom
from fluxguard.supervisor.observation import Exit
from fluxguard.supervisor.processes import Usage
from fluxguard.supervisor.signatures import INPUT, MACHINE, OUTSIDE, SIGNATURES, TRAINER, closing


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


def diagnose(symptom: Symptom, evidence: Evidence) -> Diagnosis:
    """Return why, in words; the last rule always speaks."""
    for rule in _RULES:
        found = rule(symptom, evidence)
        if found is not None:
            return found
    return _unexplained(symptom, evidence)


def _could_not_start(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if evidence.exit is None or evidence.exit.error is None:
        return None
    return Diagnosis(
        cause="could not start",
        words=f"The trainer could not be started: {evidence.exit.error}.",
        advice="Check the interpreter and the working folder of the command.",
        origin=INPUT,
        again=False,
    )


_SAID_BY_GUARD = {
    "block swap": "A block swap never came back: the step waited {waited:.1f} s for a block of weights"
    " (limit {limit:g} s).",
    "loader worker": "A DataLoader worker (process {workers}) delivered no batch for {waited:.1f} s (limit {limit:g} s)"
    " and was ended with the trainer.",
    "file read": "Reading {file} gave no new byte for {waited:.1f} s (limit {limit:g} s).",
    "cache file": "The cache file {file} is broken; it was set aside and will be made again.",
    "barrier": "The ranks did not meet within {limit:g} s: {wait}.",
}
_ADVICE_FOR_GUARD = {
    "block swap": "If it comes again: update the GPU driver, or swap fewer blocks (--blocks_to_swap).",
    "loader worker": "If it comes again: use fewer workers (--max_data_loader_n_workers), and look at the disk that"
    " holds the data set.",
    "file read": "Look at the disk or network share that holds the file.",
}


def _not_finite(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    said = evidence.last_words
    if not said or said.get("cause") != "loss not finite":
        return None
    state = said.get("file")
    return Diagnosis(
        cause="loss not finite",
        words=_sentence(str(said.get("what", "the loss was not a number"))) + ".",
        advice="Lower the learning rate, train in bf16 instead of fp16, and look at the images and captions it began"
        " with. " + (f"Then go on from {state}." if state else "Then start again: no good state was saved."),
        again=False,
        place="loss not finite",
    )


def _guard_spoke(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    said = evidence.last_words
    if not said:
        return None
    cause = str(said.get("cause", "wait"))
    values = {
        "waited": float(said.get("waited") or 0),
        "limit": float(said.get("limit") or 0),
        "wait": said.get("what") or "barrier",
        "file": said.get("file") or "a file",
        "workers": ", ".join(map(str, said.get("workers") or ())) or "unknown",
    }
    what = _sentence(str(said.get("what", "a wait")))
    template = _SAID_BY_GUARD.get(cause, "{what} took longer than it may (limit {limit:g} s).")
    return Diagnosis(
        cause=cause,
        words=f"{what}." if said.get("said") else template.format(what=what, **values),
        advice=_ADVICE_FOR_GUARD.get(cause, ""),
        again=said.get("verdict") != "never",
        place=str(said.get("file") or (not said.get("said") and said.get("what")) or cause),
    )


def _never(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if evidence.exit is None or evidence.exit.code != NEVER:
        return None
    return Diagnosis(
        cause="gave up", words="The trainer ended with the code that asks for no other attempt.", again=False
    )


def _killed(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    number = evidence.exit.signal if evidence.exit else None
    if number is None:
        launcher = _last(evidence.lines, re.compile(r"died with <Signals\.(SIG[A-Z]+): (\d+)>"))
        number = int(launcher[2]) if launcher else None
    if number is None:
        return None
    name = _signal_name(number)
    if evidence.out_of_memory:
        return Diagnosis(
            cause="system memory full",
            words=f"The system ended the trainer ({name}) because the machine ran out of memory (RAM, not the GPU's).",
            advice="Use fp8 model files, fewer loader workers, or a machine with more RAM.",
            origin=MACHINE,
            again=False,
        )
    if name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"):
        return Diagnosis(
            cause=f"killed from outside ({name})",
            words=f"Something outside ended the trainer with {name}: a person, the system, or the machine's host.",
            advice="Nothing has to be done; if it comes again, see who ends it (system log, container limits).",
            origin=OUTSIDE,
        )
    return Diagnosis(
        cause=f"crashed ({name})",
        words=f"The trainer crashed inside compiled code ({name}).",
        advice="If it comes again: update the GPU driver and the trainer's packages; test the machine's memory.",
        place=f"step {evidence.step}",
    )


def _no_room(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind != "ended" or not evidence.disk_full:
        return None
    return Diagnosis(
        cause="disk full",
        words="The disk that the training saves to is full.",
        advice="Free some space, then start the run again with the same command: it resumes.",
        origin=MACHINE,
        again=False,
    )


def _read_signature(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind != "ended":
        return None
    # The latest line counts: a warning at start-up may read like the cause of an end that came hours later.
    for line in reversed(closing(evidence.lines)):
        for signature in SIGNATURES:
            if found := signature.pattern.search(line):
                said = found[0].strip()
                return Diagnosis(
                    cause=signature.cause,
                    words=signature.words.format(line=said),
                    advice=signature.advice,
                    origin=signature.origin,
                    again=signature.again,
                    place=said,
                )
    return None


_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit|Warning))(?:: .*)?$")


def _raised(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind != "ended":
        return None
    found = _last([line for line in closing(evidence.lines) if "CalledProcessError" not in line], _ERROR)
    if found is None:
        return None
    return Diagnosis(
        cause=f"error in the trainer ({found[1]})",
        words=f"The trainer stopped with an error: {found[0].strip()}",
        advice="The last lines of its output are in the report.",
        place=f"step {evidence.step}: {found[1]}",
    )


def _stopped(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind == "ended" or evidence.usage is None or not evidence.usage.stopped:
        return None
    stopped = evidence.usage.stopped
    pids = ", ".join(map(str, stopped))
    return Diagnosis(
        cause="loader worker stopped" if set(stopped) <= evidence.workers else "trainer stopped",
        words=f"Process {pids} of the training was stopped (as by SIGSTOP) and did nothing for {symptom.since:.0f} s.",
        advice="If it comes again, see what stops processes on this machine (a debugger, a suspending scheduler).",
        origin=OUTSIDE,
    )


_STACK_CAUSES = (
    ("_wait_blocks_move", "block swap", "The step waits for a block swap that does not come back."),
    ("_try_get_data", "loader worker", "The step waits for a batch that no DataLoader worker delivers."),
    ("wait_for_everyone", "barrier", "A rank waits for others that do not come."),
    ("_meet", "barrier", "A rank waits for others that do not come."),
    ("save_state", "saving", "Saving a state does not end."),
)


def _in_stacks(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind == "ended":
        return None
    text = "\n".join(evidence.stacks.values())
    for function, cause, words in _STACK_CAUSES:
        # As py-spy and faulthandler write a frame; the command line above the frames holds flags of these names.
        if re.search(rf"^\s+{function} \(|\bin {function}$", text, re.MULTILINE):
            return Diagnosis(cause=cause, words=f"{words} Nothing moved for {symptom.since:.0f} s.", place=cause)
    return None


def _in_kernel(symptom: Symptom, evidence: Evidence) -> Diagnosis | None:
    if symptom.kind == "ended" or evidence.usage is None or not evidence.usage.unkillable:
        return None
    return Diagnosis(
        cause="disk or driver",
        words="The training waits inside the kernel for a disk, a network share or a driver that does not answer.",
        advice="Look at the disk or share that holds models and data, and at the system log.",
        origin=MACHINE,
    )


_RULES: tuple[Callable[[Symptom, Evidence], Diagnosis | None], ...] = (
    _could_not_start,
    _not_finite,
    _guard_spoke,
    _never,
    _no_room,
    _killed,
    _read_signature,
    _raised,
    _stopped,
    _in_stacks,
    _in_kernel,
)


def _unexplained(symptom: Symptom, evidence: Evidence) -> Diagnosis:
    if symptom.kind == "ended":
        code = evidence.exit.code if evidence.exit else None
        how = "in a way its keeper did not see" if code is None else f"with exit code {code}"
        return Diagnosis(
            cause="ended without a word",
            words=f"The trainer ended {how} and said nothing that explains it.",
            advice="The last lines of its output are in the report.",
            place=f"step {evidence.step}: {code}",
        )
    moving = "although it still used the processor or the disk" if symptom.kind == "stuck" else "and did nothing at all"
    waiting = f" It was waiting for: {symptom.what}." if symptom.what else ""
    return Diagnosis(
        cause=f"no progress ({symptom.phase})",
        words=f"The training made no progress for {symptom.since:.0f} s in phase '{symptom.phase}', {moving}.{waiting}",
        advice="The stacks of its processes are in the report.",
        place=f"step {evidence.step}: {symptom.phase}",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> re.Match[str] | None:
    return next(filter(None, (pattern.search(line) for line in reversed(lines))), None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
