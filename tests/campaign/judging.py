"""Whether a supervised run ended as it must: pure, from what was found of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fluxguard.supervisor import record
from fluxguard.supervisor.ledger import Event

FINISHED, STOPPED, REFUSED = "finished", "stopped", "refused"
CODES = {FINISHED: 0, STOPPED: 1, REFUSED: 2}
MOST = 99


@dataclass(frozen=True, kw_only=True)
class Right:
    """The ends that are right for one kind of fault."""

    ends: frozenset[str]
    """Of finished, stopped and refused (nothing was started, and why was said)."""
    causes: frozenset[str] = frozenset()
    """What an incident may be put down to: each a cause or the beginning of one."""
    incidents: tuple[int, int] = (0, MOST)
    """The fewest and the most."""
    healed: tuple[int, int] = (0, MOST)
    """The same of what is put right in place."""
    attempts: tuple[int, int] = (0, MOST)
    identical: bool = True
    """Whether a finished run must have the bits of an undisturbed one."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found of a run when nothing of it went on any more."""

    code: int | None
    """The exit code of the last supervisor; None for one that did not end."""
    said: str
    """All that the supervisors said."""
    expected: int
    """Steps that the training has."""
    events: Sequence[Event] = ()
    state: str = ""
    reason: str = ""
    planned: int | None = None
    applied: int = 0
    verified: bool = False
    """Whether the final weights verify, looked at anew."""
    counted: frozenset[int] | None = None
    """How often the optimizer was applied to each of the weights, by its own count; None when it was not looked at."""
    identical: bool | None = None
    """Whether the final weights have the bits of an undisturbed training; None when there is nothing to compare."""
    left: tuple[str, ...] = ()
    """Processes of its attempts that live on."""
    together: int = 0
    """The most trainers that were seen at once."""
    named: str = ""
    """Why the state that a stopped run names does not verify; empty when it does, or none is named."""
    again: Facts | None = None
    """What was found when the fault was taken away and the stopped run was started again; None when it was not."""
    met: bool = True
    """Whether the fault happened at all."""

    def of(self, kind: str) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind]


Law = Callable[[Facts, Right], Iterator[str]]


def judge(facts: Facts, right: Right) -> tuple[str, ...]:
    """Return every law that was broken, in words; none for a run that ended right."""
    return tuple(words for law in LAWS for words in law(facts, right))


def it_ends(facts: Facts, right: Right) -> Iterator[str]:
    """The supervisor ends by itself, and its exit code says how."""
    if not facts.met:
        yield "the fault never happened"
    if facts.code is None:
        yield "the supervisor did not end"
    elif facts.code != CODES.get(end(facts)):
        yield f"exit code {facts.code} of a run that is {end(facts) or 'in no state'}"


def the_end_is_right(facts: Facts, right: Right) -> Iterator[str]:
    """It ends in one of the ways that are right for the fault."""
    if end(facts) not in right.ends:
        right_ones = " or ".join(sorted(right.ends))
        yield f"{end(facts) or 'no end'} instead of {right_ones}: {facts.reason or facts.said[-300:]}"


def finished_means_finished(facts: Facts, right: Right) -> Iterator[str]:
    """Every planned step once, in weights that verify; the same bits, unless fault or run say otherwise."""
    if end(facts) != FINISHED:
        return
    if not facts.planned == facts.applied == facts.expected:
        yield f"{facts.applied} of {facts.planned} planned steps, where {facts.expected} are right"
    if facts.counted is not None and facts.counted != {facts.expected}:
        yield f"the optimizer counts {sorted(facts.counted)} steps instead of {facts.expected}"
    if not facts.verified:
        yield "the final weights do not verify"
    if right.identical and facts.identical is False and not record.doubtful(facts.events):
        yield "the final weights are not those of an undisturbed training"


def stopped_means_explained(facts: Facts, right: Right) -> Iterator[str]:
    """A stopped run says why, what to do, and names a state that goes on."""
    if end(facts) == REFUSED and not facts.said.strip():
        yield "refused without a word"
    if end(facts) != STOPPED:
        return
    if not facts.reason.strip():
        yield "stopped without a reason"
    if facts.named:
        yield f"the state it names does not go on: {facts.named}"
    if facts.again is not None:
        for words in finished_means_finished(facts.again, right):
            yield f"started again: {words}"
        if end(facts.again) != FINISHED:
            yield f"started again, it does not finish: {facts.again.reason or facts.again.said[-300:]}"


def causes_are_right(facts: Facts, right: Right) -> Iterator[str]:
    """Each incident is put down to what was done, in words, with something to do about it."""
    for event in facts.of("incident"):
        cause = str(event.values.get("cause", ""))
        if not any(cause.startswith(allowed) for allowed in right.causes):
            yield f"wrong cause: {cause or 'none'}: {event.values.get('words')}"
        for what in ("words", "advice"):
            if not str(event.values.get(what) or "").strip():
                yield f"an incident ({cause}) without {what}"


def the_numbers_are_right(facts: Facts, right: Right) -> Iterator[str]:
    """Not more incidents, heals and attempts than the fault gives cause for, and not fewer."""
    for name, kind, (fewest, most) in (
        ("incidents", "incident", right.incidents),
        ("heals", "healed", right.healed),
        ("attempts", "attempt", right.attempts),
    ):
        if not fewest <= (count := len(facts.of(kind))) <= most:
            yield f"{count} {name} instead of {fewest if fewest == most else f'{fewest} to {most}'}"


def every_attempt_has_an_end(facts: Facts, right: Right) -> Iterator[str]:
    """None is left open, and none begins before the one before it has ended."""
    opened = ""
    for event in facts.events:
        if event.kind == "attempt":
            if opened:
                yield "an attempt began before the end of the one before"
            opened = str(event.values["attempt"])
        elif event.kind in ("ended", "finished") and event.values["attempt"] == opened:
            opened = ""
    if opened and end(facts) != REFUSED:
        yield "the last attempt has no end"


def nothing_is_silent(facts: Facts, right: Right) -> Iterator[str]:
    """Every attempt that did not reach the end has an incident, unless somebody asked for a stop."""
    silent = ""
    for event in facts.events:
        if silent and event.kind in ("attempt", "finished"):
            yield silent
        if event.kind == "ended":
            silent = "an attempt that ended without an incident"
        elif event.kind in ("incident", "stopped", "attempt"):
            silent = ""
    for event in facts.of("decision"):
        if not str(event.values.get("reason") or "").strip():
            yield "a decision without a reason"


def nobody_is_left(facts: Facts, right: Right) -> Iterator[str]:
    """No process of the run lives on, and never did two trainers at once."""
    if facts.left:
        yield f"left behind: {', '.join(facts.left)}"
    if facts.together > 1:
        yield f"{facts.together} trainers at once"


LAWS: tuple[Law, ...] = (
    it_ends,
    the_end_is_right,
    finished_means_finished,
    stopped_means_explained,
    causes_are_right,
    the_numbers_are_right,
    every_attempt_has_an_end,
    nothing_is_silent,
    nobody_is_left,
)


def end(facts: Facts) -> str:
    """Return how it ended: finished, stopped, refused, or an empty text."""
    if facts.code == CODES[REFUSED] and not facts.of("attempt"):
        return REFUSED
    return facts.state if facts.state in (FINISHED, STOPPED) else ""


@dataclass(frozen=True)
class Ruling:
    """One run of the campaign."""

    kind: str
    seed: int
    moment: str
    """When the fault came, in words."""
    facts: Facts
    broken: tuple[str, ...] = field(default=())
    """The laws that were broken."""
    seconds: float = 0.0
