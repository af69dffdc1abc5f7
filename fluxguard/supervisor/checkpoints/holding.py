"""Which states there are, of which step, and which one the next start uses. It only looks: nothing is moved or made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard import manifest
from fluxguard.errors import InputError, StateUnusable
from fluxguard.launch import command
from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.launch.flags import Flags
from fluxguard.launch.job import Job
from fluxguard.launch.trainer import find
from fluxguard.manifest import Manifest
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import distrust, ledger
from fluxguard.supervisor.checkpoints import belonging, loops, states, verdicts
from fluxguard.supervisor.checkpoints.belonging import Family
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.ledger import Event, newest

SEALED, OUTPUT, ASIDE, LOOP = "sealed", "output folder", "set aside", "of a loop"
"""Where a state lies: kept by fluxguard, where the trainer saved it, put out of the way, or where a loop has saved it
by `distributed.save_state`."""
VERIFIED, UNVERIFIED, DAMAGED = "verified", "not verified", "damaged"
"""Verdicts; `not verified` is whole as far as one can see without reading it."""
YOU = "you"
_BEING_WRITTEN = 60.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """One state."""

    path: Path
    where: str
    """SEALED, OUTPUT, ASIDE or LOOP."""
    step: int | None
    """True steps, counted over all attempts; None where that cannot be known."""
    epoch: int | None
    """The epoch, from 1, in which it was saved."""
    size: int
    """Bytes."""
    at: float
    """When it was written, seconds since the epoch."""
    asked: str
    """YOU by flags, `fluxguard`, or empty where nobody knows."""
    verdict: str
    reason: str = ""
    """Why it is not used, or what else is to be said of it, in words."""
    counted: bool = True
    """Whether its true step is known, and not only what its trainer has counted since it was last started."""
    next: bool = False
    """Whether the next start goes on from it."""

    @property
    def of_a_loop(self) -> bool:
        """Whether a loop goes on from it by itself, where it asks `distributed.newest_state`."""
        return self.where == LOOP

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """All states of an output folder."""

    states: tuple[Held, ...]
    """Those that may be used first, the most true steps first."""
    run: bool
    """Whether the folder has a run of fluxguard."""
    finished: bool = False
    """Whether that run is finished: its next start trains nothing."""

    @property
    def chosen(self) -> Held | None:
        """The state that the next start goes on from."""
        return next((state for state in self.states if state.next), None)

    @property
    def usable(self) -> bool:
        """Whether there is any state to go on from, or none at all to begin with."""
        whole = any(state.verdict != DAMAGED and state.where != ASIDE for state in self.states)
        return not self.states or bool(self.chosen) or ((self.finished or not self.run) and whole)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is known of a run when its states are judged."""

    plan: Plan
    kin: Family
    others: Mapping[str, str] | None
    """The states that lay there before the run began, as `states.stamps` says; None where nobody has noted it."""
    began: float
    """Seconds since the epoch."""
    asked: str
    """Who asked for the states that do not say so."""
    distrusted: Mapping[str, str]
    """Those that the trainer could not go on from, as `distrust.known` says."""


def look(output_dir: Path, *, now: float, verify: bool) -> Holding:
    """Return the states of an output folder; `verify` reads all of them. `now` in seconds since the epoch.

    Raises InputError where there is neither a run nor a state.
    """
    run = RunDir(output_dir)
    there = [*states.sealed(run), *states.candidates(run.output_dir)]
    aside = sorted(run.aside.iterdir()) if run.aside.is_dir() else []
    of_loops = [_of_a_loop(path, verify=verify) for path in loops.found(run.output_dir) if path not in there]
    if not run.job.exists() and not there and not aside and not of_loops:
        raise InputError(output_dir, "holds no run of fluxguard, and no states of a training")
    events = ledger.read(run.ledger)
    known = _known(run, events, there)
    places = [(SEALED if path.parent == run.states else OUTPUT, path) for path in there]
    places += [(ASIDE, path) for path in aside if path.is_dir()]
    found = [_judged(path, where, known, now=now, verify=verify) for where, path in places]
    found.sort(key=lambda state: (state.where != ASIDE, state.step or 0, state.where == SEALED), reverse=True)
    last = newest(events, "finished", "stopped", "attempt")
    finished = last is not None and last.kind == "finished"
    has_run = run.job.exists() or bool(events)
    if has_run and not finished:
        found = list(_with_choice(found, known.plan, _refusals(run, known.plan)))
    if not finished and not any(state.next for state in found):
        of_loops = _with_newest(of_loops)
    return Holding(states=(*of_loops, *found), run=has_run, finished=finished)


def _of_a_loop(path: Path, *, verify: bool) -> Held:
    size, at = _weight(path)
    held = Held(path=path, where=LOOP, step=None, epoch=None, size=size, at=at, asked=manifest.OURS, verdict=DAMAGED)
    try:
        told = loops.judged(path, verify=verify)
    except StateUnusable as unusable:
        return replace(held, reason=unusable.reason)
    except OSError as error:
        return replace(held, reason=f"cannot be read ({error.strerror or type(error).__name__})")
    return replace(held, step=told.true_step, epoch=told.epoch, verdict=VERIFIED if verify else UNVERIFIED)


def _with_newest(of_loops: Sequence[Held]) -> list[Held]:
    """Return them, the one as the next that `newest_state` takes where nothing else is wrong with it."""
    first = next((index for index, state in enumerate(of_loops) if state.verdict != DAMAGED), None)
    return [replace(state, next=index == first) for index, state in enumerate(of_loops)]


def _known(run: RunDir, events: Sequence[Event], there: Sequence[Path]) -> _Run:
    plan = newest(events, "plan")
    told: Mapping[str, Any] = plan.values if plan else {}
    first = next((event for event in events if event.kind == "attempt"), None)
    began, others = (first.at, first.values.get("states_before")) if first else (0.0, None)
    flags, asked = _flags(run), ""
    if flags is not None:
        asked = YOU if flags.save_state else manifest.OURS
    return _Run(
        plan=Plan(
            planned_steps=int(told.get("planned_steps", 0)),
            batches_per_epoch=int(told.get("batches_per_epoch", 0)),
            accumulation=int(told.get("accumulation", 1)),
        ),
        kin=states.family(run, there),
        others=others if isinstance(others, Mapping) else None,
        began=began,
        asked=asked,
        distrusted=distrust.known(events, ever=True),
    )


def _flags(run: RunDir) -> Flags | None:
    job = read_json(run.job)
    with contextlib.suppress(InputError, OSError):
        if job is not None:
            known = Job.from_mapping(job)
            return Flags.of(find(known.argv, known.cwd))
    return None


def _judged(path: Path, where: str, known: _Run, *, now: float, verify: bool) -> Held:
    size, at = _weight(path)
    held = Held(
        path=path, where=where, step=None, epoch=None, size=size, at=at, asked=known.asked, verdict=UNVERIFIED
    )  # fmt: skip
    told: Manifest | None = None
    try:
        told = manifest.read(path) if verdicts.has_manifest(path) else _as_told(path, known.plan)
        asked = told.asked or (YOU if known.asked and told.attempt else known.asked)
        counted = bool(told.files or known.plan.steps_per_epoch)
        held = replace(held, step=told.true_step, epoch=told.epoch, asked=asked, counted=counted)
        reason = _why_not(path, where, told, known, verify=verify)
    except StateUnusable as unusable:
        young = where == OUTPUT and told is not None and not told.files and now - at < _BEING_WRITTEN
        return replace(
            held, verdict=DAMAGED, reason=unusable.reason + ("; it may be being written now" if young else "")
        )
    except OSError as error:
        return replace(held, verdict=DAMAGED, reason=f"cannot be read ({error.strerror or type(error).__name__})")
    return replace(held, verdict=VERIFIED if verify else UNVERIFIED, reason=reason)


def _as_told(path: Path, plan: Plan) -> Manifest:
    """Return what is known of a state without a manifest; where the plan is not known, by its trainer's own count."""
    if plan.steps_per_epoch:
        return states.without_manifest(path, plan)
    epoch, step = verdicts.train_state(path)
    return Manifest(true_step=step, epoch=epoch, batch=0, world_size=1, batches_per_epoch=0, files={})


def _why_not(path: Path, where: str, told: Manifest, known: _Run, *, verify: bool) -> str:
    """Return what speaks against using a state that is whole, or nothing. Raises StateUnusable when it is not."""
    if where == SEALED:
        states.named_rightly(path, told)
    if why := belonging.stranger(told, verdicts.network_of(path), known.kin):
        raise StateUnusable(path, why)
    if not verify:
        verdicts.quick(path)
    elif told.files:
        verdicts.verified(path)
    else:
        verdicts.sound(path)
    if where == ASIDE:
        return distrust.reason(known.distrusted, path) or "set aside: there is another of its step"
    if where == OUTPUT and states.is_of_another(path, known.began, known.others):
        return "from before this run: it belongs to another training"
    return ""


def _weight(path: Path) -> tuple[int, float]:
    """Return the bytes of a folder, and when the newest file in it was written."""
    size, at = 0, 0.0
    with contextlib.suppress(OSError):
        for one in path.rglob("*"):
            found = one.lstat()
            size, at = size + found.st_size, max(at, found.st_mtime)
    return size, at


def _refusals(run: RunDir, plan: Plan) -> Any:
    """Return what tells why a trainer cannot go on from a state, empty where it can or nobody knows."""
    job = read_json(run.job) or {}
    flags = _flags(run)

    def refusal(state: Held) -> str:
        if flags is None:
            return ""
        told = manifest.read(state.path) if verdicts.has_manifest(state.path) else _as_told(state.path, plan)
        known = Job.from_mapping(job)
        answer = command.resumed(
            known.argv,
            find(known.argv, known.cwd),
            flags,
            StartPoint(
                state=state.path,
                true_step=told.true_step,
                epoch=told.epoch,
                at_epoch_end=0 < told.batches_per_epoch <= told.batch,
            ),
            hardened=bool(job.get("hardened")),
            steps_per_epoch=plan.steps_per_epoch or None,
        )
        return answer.reason if isinstance(answer, Refusal) else ""

    return refusal


def _with_choice(found: Sequence[Held], plan: Plan, refusal: Any) -> Iterator[Held]:
    """Yield the states, the first that can be used as the next one, those before it with the reason why not."""
    chosen = False
    for state in found:
        if state.verdict == DAMAGED or state.reason or state.where == ASIDE:
            yield state
        elif not state.counted:
            yield replace(state, reason="its true step is not known before the trainer has told the length of an epoch")
        elif plan.planned_steps and (state.step or 0) >= plan.planned_steps:
            yield replace(state, reason="holds every planned step: nothing could be trained from it")
        elif why := refusal(state):
            yield replace(state, reason=why)
        elif chosen:
            yield state
        else:
            chosen = True
            yield replace(state, next=True)
