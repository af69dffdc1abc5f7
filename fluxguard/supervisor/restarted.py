"""Rounds that an elastic agent has ended by itself because a rank of it failed: what it says of them in the log.

Nothing has to be done about such a round, so that it is no incident; but why it ended is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fluxguard.launch import masking
from fluxguard.supervisor import noticing
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes import blame, ending, exits
from fluxguard.supervisor.causes.diagnosis import Evidence, diagnose
from fluxguard.supervisor.causes.signatures import plain
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.detecting.troubles import Trouble
from fluxguard.supervisor.ledger import Event, Ledger
from fluxguard.supervisor.trainee import Trainee

_PID = "pid"
_KIND = "round {number} ended"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A rank by which a round ended."""

    local_rank: int
    """Its number on this machine."""
    pid: int
    exit: Exit
    lines: Sequence[str] = ()
    """The output of its round, as far as it is known."""


def failures(lines: Iterable[str]) -> list[Failed]:
    """Return the ranks by which rounds ended, as an agent says it in these lines, in order. Pure."""
    found, before = list[Failed](), list[str]()
    for line in lines:
        said = blame.ENDED.search(plain(line)) if "exitcode" in line else None
        if said is None:
            before.append(line)
            continue
        code = int(said["code"])
        how = Exit(signal=-code) if code < 0 else Exit(code=code)
        found.append(Failed(local_rank=int(said["rank"]), pid=int(said["pid"]), exit=how, lines=tuple(before)))
        before.clear()
    return found


def trouble(failed: Failed, number: int, trainee: Trainee, *, phase: str, step: int) -> Trouble:
    """Return what is to be said of the round `number`: which rank ended it, how, and why as far as that is known."""
    evidence = Evidence(exit=failed.exit, lines=failed.lines, step=step, foreign=trainee.foreign)
    found = diagnose(Symptom(kind="ended", phase=phase, since=0.0), evidence)
    rank = f"{'local ' if trainee.several else ''}rank {failed.local_rank}"
    words = f"{rank} ended {exits.how(failed.exit, ())}, and its agent started the ranks again"
    known = found.cause != ending.UNKNOWN
    words = f"{words}: {found.words.rstrip('.')}" if known else words
    return Trouble(_KIND.format(number=number), words, found.advice if known else "")


def note(
    ledger: Ledger,
    attempt: Attempt,
    lines: Iterable[str],
    trainee: Trainee,
    *,
    but: Iterable[int],
    phase: str,
    step: int,
) -> None:
    """Write down, each once, the rounds that have ended by themselves while the attempt goes on.

    `but` are processes that we have ended: of those there is an incident. After its last restart an agent gives up,
    which ends the attempt.
    """
    known = {event.values.get(_PID) for event in noticing.of_attempt(ledger.events, attempt.uuid)} - {None}
    most = trainee.ranks.max_restarts if trainee.ranks else 0
    ended = frozenset(but)
    for failed in failures(lines):
        if failed.pid in known or failed.pid in ended or len(known) >= most:
            continue
        known.add(failed.pid)
        told = trouble(failed, len(known), trainee, phase=phase, step=step)
        ledger.add(
            "trouble",
            attempt=attempt.uuid,
            kind=told.kind,
            words=masking.mask(told.words, trainee.secrets),
            advice=told.advice,
            step=step,
            pid=failed.pid,
        )


def words(events: Sequence[Event]) -> list[str]:
    """Return, of all attempts, in which rounds a rank ended and the agent started again, a line each."""
    return [
        f"{event.values.get('kind')} at step {event.values.get('step')}: {event.values.get('words')}"
        for event in events
        if event.kind == "trouble" and event.values.get(_PID) is not None
    ]
