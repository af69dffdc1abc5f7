"""What there is to say about a run, from its files alone: it needs no living supervisor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch import masking
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import debugging, ledger, noticing, record, timeline
from fluxguard.supervisor.checkpoints import holding, states
from fluxguard.supervisor.incidents import known
from fluxguard.supervisor.ledger import Event, newest
from fluxguard.supervisor.ownership import elsewhere, owner
from fluxguard.supervisor.sensing import heals
from fluxguard.supervisor.sensing.output import Shown, Tail, shown_after
from fluxguard.supervisor.showing import together

_LAST_LINES = 40
_READ_BACK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of a run, for people, pages and scripts."""

    state: str
    """running, finished or stopped."""
    watched: bool
    """Whether a supervisor looks after it now."""
    next_attempt_at: float | None
    """When the next attempt starts, seconds since the epoch; None when none is waited for."""
    planned_steps: int | None
    applied_steps: int
    """Optimizer steps embodied: in the trainer while it runs, in the final weights, or in the newest state."""
    attempts: int
    phase: str | None
    step: int
    loss: float | None
    eta_s: float | None
    """Seconds to the end, as the trainer's own bar estimates them."""
    reason: str
    """Why it is in this state."""
    weights: dict[str, Any]
    """{path, verified} of the final weights."""
    incidents: list[dict[str, Any]]
    """{cause, phase, detected_after_s, resumed_step, lost_steps, report} each, in order."""
    healed: list[dict[str, Any]]
    """{step, what, cause, why, seconds, identical, doubt, words, ...} each: put right without a restart, in order."""
    healing: str
    """What they add up to in words, and whether the training is still bit-identical; empty when there were none."""
    output_dir: str
    hardened: bool | None
    lines: list[str]
    """The last lines of the trainer's output."""
    node: str | None = None
    """Which machine of several this is; None where one trains alone."""
    host: str | None = None
    """The other machine that supervises it and shares the folder; None when it is this one, or none."""
    troubles: list[str] = field(default_factory=list)
    """What is not as it should be in a training that goes on."""
    machine: str | None = None
    """What the newest sample shows of GPU, memory and disk, in words; None when nothing trains."""
    remedies: list[dict[str, Any]] = field(default_factory=list)
    """{name, flags, reason, at, words} each: what the run does otherwise than its command says, each once."""
    ranks: str = ""
    """Which rank of this machine the others wait for, and what it does instead; empty when none does for long."""
    debugging: str = ""
    """Whether this attempt, or the next one, tells more of its collectives (--debug-distributed)."""
    decided: str = ""
    """What was decided last, why, and when; empty when nothing had to be, and when the run is over."""

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values; what is not a number is null."""
        return asdict(self)


def read(run: RunDir) -> Status | None:
    """Return the status of a run, or None when there never was one."""
    events = ledger.read(run.ledger)
    if not events:
        return None
    attempt = attempts.last(run, events)
    other = elsewhere(run)
    watched = owner(run) is not None or other is not None
    open_ = attempt is not None and not attempts.closed(events, attempt.uuid)
    running = open_ and (other is not None or (attempt is not None and _lives(run, attempt)))
    shown, lines = _output(run, attempt) if attempt else (Shown(), [])
    beats = attempt.beats(run) if attempt else []
    beat = next(iter(beats), None)
    state, reason = _state(events, watched=watched, running=running)
    step = attempt.true_step(beat, shown, hardened=bool(_hardened(events))) if attempt else 0
    return Status(
        state=state,
        watched=watched,
        next_attempt_at=_next_attempt(events) if watched and not running else None,
        planned_steps=_planned(events) or (beat.total if beat else 0) or shown.planned or shown.total or None,
        applied_steps=_applied(run, events, state, step),
        attempts=attempt.number if attempt else 0,
        phase=(beat.phase if beat else shown.phase) if running else None,
        step=step,
        loss=_finite(beat.loss if beat and math.isfinite(beat.loss) else shown.loss),
        eta_s=shown.eta if running else None,
        reason=reason,
        weights=_weights(events),
        incidents=_incidents(events),
        healing=record.healing(events),
        healed=[{**e.values, "at": e.at, "words": heals.words(e.values)} for e in events if e.kind == "healed"],
        output_dir=str(run.output_dir),
        node=run.node or None,
        host=other.host if other else None,
        hardened=_hardened(events),
        lines=masking.lines(lines[-_LAST_LINES:], known.secrets(read_json(run.job) or {}, os.environ)),
        troubles=noticing.words(events, attempt.uuid, beat) if attempt else [],
        machine=timeline.words(sample) if running and (sample := timeline.last(run)) else None,
        remedies=[{**asdict(one), "words": one.words} for one in record.net(record.remedies(events))],
        ranks=together.words(beats, time.monotonic(), several=bool(run.node)) if running and other is None else "",
        debugging=debugging.words(run, events, running=running),
        decided=_decided(events) if state == "running" else "",
    )


def _decided(events: Sequence[Event]) -> str:
    last = newest(events, "decision")
    if last is None:
        return ""
    at = time.strftime("%H:%M", time.localtime(last.at))
    return f"{last.values.get('action')}: {last.values.get('reason')} (at {at})"


def _lives(run: RunDir, attempt: attempts.Attempt) -> bool:
    ended = attempt.exit(run)
    # Without its keeper, which is ours, a trainer still trains.
    return ended is None or (ended.unknown and bool(attempt.processes()))


def _state(events: Sequence[Event], *, watched: bool, running: bool) -> tuple[str, str]:
    kinds = ("finished", "stopped", "attempt", "job") if watched else ("finished", "stopped", "attempt")
    last = newest(events, *kinds)
    if last is not None and last.kind in ("finished", "stopped"):
        return last.kind, str(last.values["reason"])
    if running:
        return "running", "training" if watched else "training, but nobody watches: run `fluxguard supervise` again"
    if watched:
        decision = newest(events, "decision")
        return "running", str(decision.values.get("reason", "starting")) if decision else "starting"
    return "stopped", "its supervisor ended before the training did; run `fluxguard supervise` again to resume"


def _next_attempt(events: Sequence[Event]) -> float | None:
    last = events[-1]
    return last.values.get("next_attempt_at") if last.kind == "decision" else None


def _planned(events: Sequence[Event]) -> int:
    plan = newest(events, "plan")
    return int(plan.values["planned_steps"]) if plan else 0


def _applied(run: RunDir, events: Sequence[Event], state: str, step: int) -> int:
    if state == "running":
        return step
    last = record.conclusion(events)
    if last is not None:
        return int(last.values["applied_steps"])
    if states.candidates(run.output_dir):  # nobody has taken in yet what the trainer left before it was interrupted
        try:
            chosen = holding.look(run.output_dir, now=time.time(), verify=False).chosen
        except (InputError, OSError):
            chosen = None
        return (chosen.step or 0) if chosen else 0
    sealed = (path.name.removeprefix("step-") for path in run.states.glob("step-*"))
    return max((int(name) for name in sealed if name.isdigit()), default=0)


def _weights(events: Sequence[Event]) -> dict[str, Any]:
    finished = newest(events, "finished")
    if finished is not None and not finished.values["weights"]:
        return {"path": None, "verified": False}
    if finished is not None:
        path, size = Path(finished.values["weights"]), finished.values.get("size")
        # The whole verification was done at the end; here it is enough that nobody has touched the file since.
        return {"path": str(path), "verified": path.is_file() and path.stat().st_size == size}
    job = newest(events, "job")
    return {"path": (job.values.get("weights") or None) if job else None, "verified": False}


def _incidents(events: Sequence[Event]) -> list[dict[str, Any]]:
    keys = ("cause", "phase", "detected_after_s", "step", "resumed_step", "lost_steps", "words", "report")
    return [{key: e.values.get(key) for key in keys} for e in events if e.kind == "incident"]


def _hardened(events: Sequence[Event]) -> bool | None:
    job = newest(events, "job")
    return job.values.get("hardened") if job else None


def _output(run: RunDir, attempt: attempts.Attempt) -> tuple[Shown, list[str]]:
    """Read the attempt's output; of a very long one its beginning, for the totals, and its end."""
    try:
        size = run.log.stat().st_size
    except OSError:
        return Shown(), []
    start = attempt.log_from if attempt.log_from <= size else 0
    tail = Tail(run.log, start)
    shown = shown_after(Shown(), tail.read())
    if size - tail.position > _READ_BACK:
        tail = Tail(run.log, size - _READ_BACK)
    while new := tail.read():
        shown = shown_after(shown, new)
    return shown, list(tail.lines)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
