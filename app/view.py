"""What the screen shows for what is known of a run: texts, numbers, and which buttons can be pressed. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_LINES = 20
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_FOR_THE_TERMINAL = ("; the state of step", "; it resumes from", "; run `fluxguard")
"""What the buttons of the page say better."""
_NONE = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SHORT_WAIT, _LONG_WAIT = 45, 90 * _MINUTE

_PREPARING = {
    "load": "loading the model",
    "tokenizers": "loading the tokenizers",
    "accelerator": "connecting the processes",
    "cast": "shrinking the model to 8 bits",
    "prepare": "preparing the model",
    "resume": "loading the saved state",
    "trackers": "starting the trackers",
    "hash": "checking the base model",
    "text cache": "reading the captions",
    "latent cache": "preparing the images",
    "first step": "the first step, which takes longest",
}
_BESIDES = {
    "sampling": "Drawing sample images",
    "saving": "Saving",
    "upload": "Uploading",
    "validation": "Validating",
    "on main": "Rank 0 works alone",
}
_SHORT = {
    "load": "Loading",
    "tokenizers": "Loading",
    "accelerator": "Starting",
    "cast": "Loading",
    "prepare": "Preparing",
    "resume": "Resuming",
    "trackers": "Starting",
    "hash": "Checking",
    "text cache": "Captions",
    "latent cache": "Images",
    "first step": "First step",
    "step": "Training",
    "sampling": "Samples",
    "validation": "Validating",
    "saving": "Saving",
    "on main": "Rank 0",
    "upload": "Uploading",
    "ending": "Ending",
}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is known of the supervisor that the page started last for a run."""

    at: float
    alive: bool
    said: str
    """The end of what it wrote."""
    heard: bool
    """Whether it has come so far as to write into the ledger."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One incident."""

    number: int
    cause: str
    words: str
    done: str
    """What was done about it."""
    advice: str
    facts: str
    report: str
    """The whole report, as text."""


@dataclass(frozen=True, kw_only=True)
class Screen:
    """All of the changing part of the page."""

    tone: str
    """idle, busy, waiting, good, stopped or bad: how it is coloured, never the only sign of it."""
    headline: str
    detail: str = ""
    share: float | None = None
    """How much is done, 0 to 1; None when that is not known."""
    figures: tuple[tuple[str, str], ...] = ()
    cards: tuple[Card, ...] = ()
    """Newest first."""
    machine: tuple[tuple[str, str], ...] = ()
    """What the sensors show, by name; what they do not is said to be unknown."""
    troubles: tuple[str, ...] = ()
    """What is not as it should be, though the training goes on; a sentence each."""
    remedies: tuple[str, ...] = ()
    """What the run does otherwise than its command says, and why; a sentence each."""
    heals: tuple[str, ...] = ()
    """What was put right without a restart, a sentence each, newest first."""
    log: str = ""
    can_stop: bool = False
    stop_label: str = "Stop"
    can_resume: bool = False
    resume_label: str = "Resume"


EMPTY = Screen(
    tone="idle",
    headline="No training yet",
    detail="Start the demo to see how it looks, or give the path of a train.sh you have.",
)


def screen(
    seen: Mapping[str, Any] | None, launch: Launch | None, *, stopping: bool, trouble: str = "", now: float
) -> Screen:
    """Return what to show for a status (as `Status.to_mapping` returns it; None before there is one).

    `stopping` says that a stop was asked for, `trouble` why the last thing asked for could not be done.
    """
    if launch is not None and not launch.heard and (seen is None or not _goes_on(seen)):
        before = _beginning(seen, launch)
        if before is not None:
            return before
    if seen is None:
        return EMPTY
    shown = {"running": _running, "finished": _finished}.get(str(seen["state"]), _stopped)(seen, now)
    return _around(shown, seen, stopping=stopping, trouble=trouble)


def _goes_on(seen: Mapping[str, Any]) -> bool:
    return seen["state"] == "running" and bool(seen["watched"])


def _beginning(seen: Mapping[str, Any] | None, launch: Launch) -> Screen | None:
    """Return the screen of a supervisor that has not said anything yet; None when what was before still holds."""
    log = _log(seen["lines"]) if seen else ""
    if launch.alive:
        return Screen(tone="busy", headline="Starting", detail="This takes a few seconds.", log=log)
    if seen is not None and seen["state"] == "finished":
        return None
    said = _last_words(launch.said) or "Its supervisor ended without a word; see supervisor.log in the run's folder."
    again = "Try again"
    return Screen(tone="bad", headline="It could not start", detail=said, log=log, can_resume=True, resume_label=again)


def _last_words(said: str) -> str:
    """Return the error that a supervisor ended with, else the end of what it wrote."""
    lines = [_ANSI.sub("", line).rstrip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("fluxguard: ") for line in lines if line.startswith("fluxguard: ")]
    return errors[-1] if errors else "\n".join(lines[-SHOWN_LINES:])


def _running(seen: Mapping[str, Any], now: float) -> Screen:
    if seen["next_attempt_at"] is not None:
        wait = max(0, round(seen["next_attempt_at"] - now))
        headline = f"Starting again in {wait} s" if wait else "Starting again"
        return Screen(tone="waiting", headline=headline, detail=_sentence(seen["reason"]))
    headline = _headline(seen)
    if not seen["watched"]:
        detail = "Nobody watches it now: a hang would not be noticed. Press Watch again."
        return Screen(tone="waiting", headline=headline, detail=detail, can_resume=True, resume_label="Watch again")
    again = f"Attempt {seen['attempts']}. " if seen["attempts"] > 1 else ""
    detail = f"{again}You can close this page; the training goes on."
    if seen["hardened"] is False:
        detail += " The trainer is not hardened, so a hang is noticed later."
    return Screen(tone="busy", headline=headline, detail=detail, can_stop=True)


def _headline(seen: Mapping[str, Any]) -> str:
    phase, step, planned = seen["phase"], seen["step"], seen["planned_steps"]
    where = f"step {step} of {planned}" if planned else f"step {step}"
    if phase is None:
        return f"Starting again from step {step}" if step else "Starting"
    if phase in _PREPARING and not (phase == "first step" and step):
        return f"Getting ready{' again' if seen['attempts'] > 1 else ''}: {_PREPARING[phase]}"
    if phase == "ending":
        return "All steps are trained: writing the result"
    if phase in _BESIDES:
        return f"{_BESIDES[phase]}, at {where}"
    left = f", {about(seen['eta_s'])} left" if seen["eta_s"] is not None else ""
    return f"Training: {where}{left}"


def _finished(seen: Mapping[str, Any], now: float) -> Screen:
    healing = _sentence(str(seen.get("healing") or ""))
    return Screen(
        tone="good",
        headline="Finished and verified",
        detail=f"{_steps(seen['applied_steps'])} trained. {healing}{' ' if healing else ''}"
        f"The result is complete and was read back: {seen['weights']['path']}",
    )


def _stopped(seen: Mapping[str, Any], now: float) -> Screen:
    reason = str(seen["reason"])
    asked = reason.startswith("stopped on request")
    step, planned = seen["applied_steps"], seen["planned_steps"]
    if asked:
        headline = "Stopped on request"
    elif seen["incidents"]:
        headline = f"Stopped: {seen['incidents'][-1]['cause']}"
    else:
        headline = "Stopped before the end"
    kept = f" Step {step} of {planned} is saved." if step and planned else ""
    go_on = f"Resume goes on from step {step}." if step else "Resume begins again at the first step."
    for words in _FOR_THE_TERMINAL:
        reason = reason.partition(words)[0]
    reason = "" if asked else _sentence(reason)
    return Screen(
        tone="stopped" if asked else "bad",
        headline=headline,
        detail=f"{reason}{kept} {go_on}".strip(),
        can_resume=True,
    )


def _around(shown: Screen, seen: Mapping[str, Any], *, stopping: bool, trouble: str) -> Screen:
    """Return the screen with what every state has: figures, incidents, log, and a stop under way."""
    running = seen["state"] == "running"
    planned, step = seen["planned_steps"], seen["step"] if running else seen["applied_steps"]
    stop = running and stopping
    return Screen(
        tone="waiting" if stop else shown.tone,
        headline="Stopping" if stop else shown.headline,
        detail="This can take half a minute; a save that is under way is finished first." if stop
        else " ".join(part for part in (trouble, shown.detail) if part),
        share=min(1.0, step / planned) if planned else None,
        figures=(
            ("Phase", _phase(seen) if running else ("Finished" if seen["state"] == "finished" else "Stopped")),
            ("Step", f"{step} of {planned}" if planned else str(step)),
            ("Loss", f"{seen['loss']:.4f}" if seen["loss"] is not None else _NONE),
            ("Time left", brief(seen["eta_s"]) if running and seen["eta_s"] else _NONE),
        ),
        cards=tuple(_card(number, one) for number, one in enumerate(seen["incidents"], 1))[::-1],
        machine=(*((str(name), str(said)) for name, said in seen.get("machine", ())), *_of_ranks(seen)),
        troubles=tuple(_sentence(str(trouble)) for trouble in seen.get("troubles", ())) if running else (),
        remedies=tuple(_sentence(f"{one['words']}: {one['reason']}") for one in seen.get("remedies", ())),
        heals=tuple(_sentence(str(one["words"])) for one in seen.get("healed", ()))[::-1],
        log=_log(seen["lines"]),
        can_stop=shown.can_stop or (running and seen["watched"]) if not stop else False,
        stop_label="Stopping..." if stop else "Stop",
        can_resume=shown.can_resume and not stop,
        resume_label=shown.resume_label,
    )  # fmt: skip


def _of_ranks(seen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of several ranks: which one the others wait for, and that they tell more than usual."""
    for name in ("ranks", "debugging"):
        if seen["state"] == "running" and seen.get(name):
            yield name, str(seen[name])


def _phase(seen: Mapping[str, Any]) -> str:
    if seen["next_attempt_at"] is not None:
        return "Waiting"
    return _SHORT.get(str(seen["phase"]), "Starting")


def _card(number: int, one: Mapping[str, Any]) -> Card:
    done = " ".join(filter(None, [_done(one), _sentence(str(one.get("decision") or ""))]))
    after = one.get("detected_after_s")
    facts = [
        when(one["at"]) if isinstance(one.get("at"), (int, float)) else "",
        f"at step {one['step']}" if one.get("step") is not None else "",
        f"noticed {f'after {brief(after)}' if after >= 1 else 'at once'}" if isinstance(after, (int, float)) else "",
    ]
    return Card(
        number=number,
        cause=_capital(str(one.get("cause") or "unknown cause")),
        words=str(one.get("words") or ""),
        done=done,
        advice=str(one.get("advice") or ""),
        facts=", ".join(fact for fact in facts if fact),
        report=str(one.get("text") or ""),
    )


def _done(one: Mapping[str, Any]) -> str:
    """Say how the training went on; reports of older versions say no more than the step."""
    resumed, lost, action = one.get("resumed_step"), one.get("lost_steps") or 0, one.get("action")
    if action == "round":
        return "Its ranks were ended, and their own launcher starts them again."
    if resumed is None:
        return "Started again." if action == "restart" else "The training was stopped."
    again = f"; {_steps(lost)} had to be trained again" if lost else "; no step was lost"
    return f"Started again from {f'step {resumed}' if resumed else 'the beginning'}{again}."


def _log(lines: Sequence[str]) -> str:
    return "\n".join(_ANSI.sub("", line).rstrip() for line in lines[-SHOWN_LINES:])


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    text = _capital(text.strip())
    return text if not text or text[-1] in ".!?" else f"{text}."


def about(seconds: float) -> str:
    """Return a time to wait, as a person says it in passing: "about 12 min"."""
    if seconds < _SHORT_WAIT:
        return "under a minute"
    if seconds < _LONG_WAIT:
        return f"about {max(1, round(seconds / _MINUTE))} min"
    return f"about {brief(seconds)}"


def brief(seconds: float) -> str:
    """Return a duration in its two largest units: "42 s", "12 min", "3 h 05 min", "2 d 4 h"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def when(at: float) -> str:
    """Return a time of day with its date, in the time zone of this machine."""
    return time.strftime("%b %d, %H:%M", time.localtime(at))
