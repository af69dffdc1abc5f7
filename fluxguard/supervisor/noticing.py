"""Writes down what a training shows while it goes on: its troubles, each once, and a sample of its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluxguard.heartbeat import Beat
from fluxguard.launch import masking
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import timeline
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.detecting.troubles import Trouble, of_beat, troubles
from fluxguard.supervisor.ledger import Event, Ledger


def notice(
    run: RunDir,
    ledger: Ledger,
    attempt: Attempt,
    history: History,
    limits: Limits,
    *,
    at: float,
    step: int,
    secrets: Iterable[str] = (),
) -> None:
    """Keep what is to be noticed after a look that sampled, `at` seconds since the epoch. `step` are the true steps.

    What the output says may hold `secrets`, which are hidden.
    """
    known = kinds(ledger.events, attempt.uuid)
    for trouble in troubles(history, limits):
        if trouble.kind not in known:
            ledger.add(
                "trouble",
                attempt=attempt.uuid,
                kind=trouble.kind,
                words=masking.mask(trouble.words, secrets),
                advice=trouble.advice,
                step=step,
            )
    timeline.append(run, timeline.point(history.last, at=at, attempt=attempt.number, step=step))


def kinds(events: Sequence[Event], attempt: str) -> frozenset[str]:
    """Return the kinds of trouble that are known of an attempt."""
    return frozenset(str(event.values.get("kind")) for event in of_attempt(events, attempt))


def of_attempt(events: Sequence[Event], attempt: str) -> list[Event]:
    """Return the troubles of an attempt, in order."""
    return [event for event in events if event.kind == "trouble" and event.values.get("attempt") == attempt]


def words(events: Sequence[Event], attempt: str, beat: Beat | None) -> list[str]:
    """Return the troubles of an attempt in words: what the heartbeat tells as it is now, then what was seen before."""
    fresh = {trouble.kind: trouble.text for trouble in of_beat(beat)}
    seen = {
        str(event.values.get("kind")): Trouble(
            str(event.values.get("kind")),
            str(event.values.get("words")).rstrip("."),
            str(event.values.get("advice") or "").rstrip("."),
        ).text
        for event in of_attempt(events, attempt)
    }
    return list({**fresh, **seen, **fresh}.values())
