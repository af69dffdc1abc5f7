"""What people are told of a run who do not look at it: which events make a message, and what it says. Pure.

An event is sifted into a draft or nothing; a draft is written into a message with what is known of the run by then.
Between two messages about restarts lies `limits.NOTIFY_EVERY`; those that came meanwhile are summed up in the next.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch import masking
from fluxguard.limits import NOTIFY_EVERY
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.showing.durations import said

VARIABLE = "FLUXGUARD_NOTIFY"
"""Holds the URLs, separated by spaces: so they stand in no command line."""
OPTION = "--notify"
LEVELS = ("end", "incidents", "all")
DEFAULT_LEVEL = "incidents"

_LEVEL_OF = {
    "finished": "end",
    "stopped": "end",
    "restarted": "incidents",
    "would": "incidents",
    "trouble": "incidents",
    "begun": "all",
}
_SERIOUS = frozenset(
    {
        "optimizer stopped",
        "GPU memory spills",
        "GPU fault",
        "disk nearly full",
        "memory nearly full",
        "trains on the CPU",
    }
)
"""Troubles that somebody should act on before they cost the result; the others are told at level `all`."""
_HOSTED = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos", "gotify", "gotifys"})
"""Schemes whose URLs hold a machine behind `//`; with others it is a topic, an account or the token itself."""
_HOST = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)
_LONGEST_BODY = 1500


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message, secrets masked."""

    title: str
    body: str
    tone: str
    """info, success, warning or failure, as Apprise names them."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a message is about."""

    kind: str
    """finished, stopped, restarted, would (of a dry run), trouble or begun."""
    events: tuple[Event, ...]
    """Oldest first: for a restart the incidents that led to it, for a stop its incident and itself, else one event."""
    decision: Event | None = None
    """What was decided on the last incident."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known of the run when a message about it is written."""

    name: str
    output_dir: str
    planned: int = 0
    """Steps of the whole run; 0 when not known yet."""
    reached: int = 0
    """Steps that the newest attempt came to, saved or not."""
    eta: float | None = None
    """Seconds of training that are left; None when unknown."""
    heals: int = 0
    """What was put right without a restart so far."""
    incidents: int = 0
    secrets: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Sieve:
    """What was told so far, as far as it matters for what is told next."""

    level: str = DEFAULT_LEVEL
    restarted_at: float | None = None
    """When a restart was told last, seconds since the epoch."""
    held: tuple[Event, ...] = ()
    """The incidents that led to a restart which is not told yet."""
    decision: Event | None = None
    incident: Event | None = None
    """The newest one, while what follows it is not decided."""
    troubles: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(attempt, kind) of those told."""


def sift(sieve: Sieve, event: Event) -> tuple[Sieve, Draft | None]:
    """Return what is to be told because of an event, and the sieve after it."""
    match event.kind:
        case "finished" | "stopped":
            led = (sieve.incident,) if sieve.incident is not None else ()
            ended = replace(sieve, held=(), incident=None)
            return ended, _wanted(sieve, Draft(kind=event.kind, events=(*led, event)))
        case "incident":
            return replace(sieve, incident=event), None
        case "decision" if event.values.get("action") == "restart" and sieve.incident is not None:
            held = replace(sieve, incident=None, held=(*sieve.held, sieve.incident), decision=event)
            return due(held, event.at)
        case "trouble":
            return _trouble(sieve, event)
        case "attempt" | "adopted":
            return sieve, _wanted(sieve, Draft(kind="begun", events=(event,)))
        case "would":
            return sieve, _wanted(sieve, Draft(kind="would", events=(event,)))
        case _:
            return sieve, None


def due(sieve: Sieve, now: float) -> tuple[Sieve, Draft | None]:
    """Return the message about restarts whose time has come, if there is one."""
    at = due_at(sieve)
    if at is None or now < at:
        return sieve, None
    draft = Draft(kind="restarted", events=sieve.held, decision=sieve.decision)
    return replace(sieve, held=(), restarted_at=now), _wanted(sieve, draft)


def due_at(sieve: Sieve) -> float | None:
    """Return when the restarts that were held back may be told, seconds since the epoch; None when there are none."""
    if not sieve.held:
        return None
    return sieve.held[0].at if sieve.restarted_at is None else sieve.restarted_at + NOTIFY_EVERY


def _wanted(sieve: Sieve, draft: Draft) -> Draft | None:
    return draft if LEVELS.index(_LEVEL_OF[draft.kind]) <= LEVELS.index(sieve.level) else None


def _trouble(sieve: Sieve, event: Event) -> tuple[Sieve, Draft | None]:
    kind = str(event.values.get("kind", ""))
    mark = (str(event.values.get("attempt", "")), kind)
    if mark in sieve.troubles or (kind not in _SERIOUS and sieve.level != "all"):
        return sieve, None
    told = replace(sieve, troubles=sieve.troubles | {mark})
    return told, _wanted(sieve, Draft(kind="trouble", events=(event,)))


def written(draft: Draft, about: About) -> Message:
    """Return the message of a draft: the run's name, where it is, the sentence, and the command that shows more."""
    headline, sentences, tone = _WRITERS[draft.kind](draft, about)
    more = f"More: fluxguard status {shlex.quote(about.output_dir)}"
    body = "\n".join([*filter(None, [_place(draft, about), *sentences])])

    def masked(text: str) -> str:
        return masking.mask(text, about.secrets)

    return Message(
        title=masked(f"{about.name}: {headline}"), body=f"{_shortened(masked(body))}\n{masked(more)}", tone=tone
    )


def trial() -> Message:
    """Return the message that says that messages arrive."""
    return Message(
        title="fluxguard: a test message",
        body="Messages of fluxguard arrive here. Nothing has happened to a training.",
        tone="info",
    )


def _finished(draft: Draft, about: About) -> tuple[str, list[str], str]:
    return "finished and verified", [_value(draft, "reason"), _meanwhile(about)], "success"


def _stopped(draft: Draft, about: About) -> tuple[str, list[str], str]:
    reason = _value(draft, "reason")
    tone = "info" if reason.startswith("stopped on request") else "failure"
    advice = str(draft.events[0].values.get("advice") or "")
    return "stopped", [reason, "" if advice in reason else advice, _meanwhile(about)], tone


def _restarted(draft: Draft, about: About) -> tuple[str, list[str], str]:
    last = draft.events[-1]
    step = last.values.get("resumed_step")
    sentences = [str(last.values.get("words", "")), "" if step is None else f"From: step {step}."]
    if draft.decision is not None:
        sentences.append(str(draft.decision.values.get("reason", "")))
        sentences.append(_otherwise(draft.decision))
    if len(draft.events) == 1:
        return "restarted", sentences, "warning"
    causes = _counted([str(event.values.get("cause", "unknown")) for event in draft.events])
    return f"restarted {len(draft.events)} times", [f"Causes: {causes}. The last one:", *sentences], "warning"


def _would(draft: Draft, about: About) -> tuple[str, list[str], str]:
    action = _value(draft, "action") or "do nothing"
    sentences = [_value(draft, "words"), _value(draft, "reason"), _otherwise(draft.events[-1])]
    return f"dry run, would {action}", sentences, "warning"


def _otherwise(decision: Event) -> str:
    """Return what the next attempt does otherwise, or an empty text."""
    remedy, flags = decision.values.get("remedy"), [str(flag) for flag in decision.values.get("flags") or ()]
    changed = f" ({', '.join(flags)})" if flags else ""
    return f"Otherwise from now on: {remedy}{changed}." if remedy else ""


def _troubled(draft: Draft, about: About) -> tuple[str, list[str], str]:
    headline = f"in trouble ({_value(draft, 'kind')}), goes on"
    return headline, [_value(draft, "words"), _value(draft, "advice")], "warning"


def _begun(draft: Draft, about: About) -> tuple[str, list[str], str]:
    event = draft.events[0]
    number = event.values.get("number", "?")
    return (f"attempt {number} starts" if event.kind == "attempt" else f"attempt {number} is watched again"), [], "info"


_WRITERS = {
    "finished": _finished,
    "stopped": _stopped,
    "restarted": _restarted,
    "would": _would,
    "trouble": _troubled,
    "begun": _begun,
}


def _value(draft: Draft, name: str) -> str:
    return str(draft.events[-1].values.get(name) or "")


def _place(draft: Draft, about: About) -> str:
    """Return `step x of y`, and what is left while the training goes on."""
    values = draft.events[-1].values
    step: Any = next((values[key] for key in ("applied_steps", "step", "start_step") if key in values), None)
    if step is None:
        return ""
    place = f"step {step} of {about.planned or '?'}"
    if draft.kind == "stopped" and not step and about.reached:
        place = f"step {about.reached} of {about.planned or '?'}, none of them saved"
    over = about.eta is None or draft.kind in ("finished", "stopped")
    return place if over else f"{place}, about {said(about.eta or 0.0)} left"


def _meanwhile(about: About) -> str:
    counted = [(about.incidents, "incident"), (about.heals, "heal")]
    parts = [f"{count} {name}{'' if count == 1 else 's'}" for count, name in counted if count]
    return f"In this run: {', '.join(parts)}." if parts else ""


def _counted(causes: Sequence[str]) -> str:
    counts = {cause: causes.count(cause) for cause in dict.fromkeys(causes)}
    return ", ".join(cause if count == 1 else f"{cause} ({count} times)" for cause, count in counts.items())


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_BODY else f"{text[: _LONGEST_BODY - 3]}..."


def urls(given: Sequence[str], environment: str) -> tuple[str, ...]:
    """Return the URLs to notify, each once: those on the command line, then those of the variable.

    Raises InputError for what is no URL, without repeating more of it than its scheme.
    """
    found = dict.fromkeys([*(url.strip().replace(" ", "%20") for url in given), *environment.split()])
    for url in found:
        if not url.partition("://")[0] or "://" not in url:
            raise InputError(OPTION, "must be URLs as Apprise writes them, such as ntfys://TOPIC (see docs/notify.md)")
    return tuple(found)


def shown(url: str) -> str:
    """Return what may be written down of a URL: its scheme, and its host where that is a machine and no secret."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    account, at, address = rest.partition("?")[0].rpartition("@")
    host = address.partition("/")[0]
    # A password that was not encoded may hold any sign: what does not look like one account and one host is not shown.
    plain = _HOST.fullmatch(host) and not (at and "/" in account)
    return f"{scheme}://{host if scheme in _HOSTED and plain else '...'}"


def without_urls(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without `--notify URL`; what follows `--` is the trainer's."""
    ours = words.index("--") if "--" in words else len(words)
    kept, skip = [], False
    for word in words[:ours]:
        if skip or word == OPTION or word.startswith(f"{OPTION}="):
            skip = not skip and word == OPTION
            continue
        kept.append(word)
    return [*kept, *words[ours:]]
