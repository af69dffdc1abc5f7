"""What the ledger of a run adds up to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fluxguard.launch.remedies import net as net_flags
from fluxguard.rundir import RunDir
from fluxguard.supervisor import distrust
from fluxguard.supervisor.causes.signatures import TRAINER
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.states import Plan, Sealed, State
from fluxguard.supervisor.ledger import Event, Ledger, newest
from fluxguard.supervisor.policy import Setback
from fluxguard.supervisor.sensing.heals import Heal


def began(ledger: Ledger) -> float:
    """Return when the first attempt of a run was made, seconds since the epoch; older states are not the run's."""
    return next((event.at for event in ledger.events if event.kind == "attempt"), float("inf"))


def others(ledger: Ledger) -> dict[str, str] | None:
    """Return the states that lay in the output folder before the run began, by name; None where nobody has noted it."""
    first = next((event for event in ledger.events if event.kind == "attempt"), None)
    known = first.values.get("states_before") if first else None
    return {str(name): str(stamp) for name, stamp in known.items()} if isinstance(known, dict) else None


def seal(run: RunDir, ledger: Ledger, plan: Plan) -> Sealed:
    """Seal the states that are the run's."""
    return states.seal(run, plan, since=began(ledger), others=others(ledger))


def planned(ledger: Ledger, accumulation: int) -> Plan:
    """Return what the ledger knows of the arithmetic of a run."""
    known = newest(ledger.events, "plan")
    if known is None:
        return Plan(accumulation=accumulation)
    return Plan(
        planned_steps=int(known.values["planned_steps"]),
        batches_per_epoch=int(known.values["batches_per_epoch"]),
        accumulation=int(known.values["accumulation"]),
    )


def stopped(run: RunDir, ledger: Ledger, plan: Plan, reason: str, *, reached: int = 0, refused: bool = False) -> str:
    """Record that a run is stopped, and from where it can go on; return the whole reason.

    `reached` are the true steps it had come to; `refused` says that its newest state is why it stopped.
    """
    known = not foreign(ledger.events)
    sealed = seal(run, ledger, plan) if known else Sealed()
    state = _left(run, ledger, plan) if known else None
    step = state.true_step if state else 0
    again = f", {reached - step} steps will be trained again" if reached > step else ""
    if not known and _goes_on(ledger.events):
        way = "Started again, it goes on from the newest state that the trainer itself finds."
    elif not known:
        way = "Started again, it begins from the beginning: fluxguard knows no states of this trainer."
    elif refused:
        way = f"The newest state is that of step {step}."
    elif sealed.unread:
        way = "Its newest state could not be looked at now; that is done when it starts again."
    elif step:
        way = f"The state of step {step} resumes it{again}."
    else:
        way = f"No state was saved: started again, it begins at step 0{again}."
    reason = f"{reason.rstrip('.')}. {way}"
    with contextlib.suppress(OSError):
        run.stop.unlink(missing_ok=True)
    ledger.add("stopped", reason=reason, applied_steps=step)
    return reason


def _left(run: RunDir, ledger: Ledger, plan: Plan) -> State | None:
    """Return the state that a stopped run keeps; where that were none, those that were distrusted get another trial."""
    distrusted = distrust.known(ledger.events)
    against = functools.partial(distrust.reason, distrusted)
    found = next(states.verified(run, plan, [], against=against), None)
    if found is None and distrusted:
        distrust.give_back(run, distrusted)
        found = next(states.verified(run, plan, []), None)
    return found


def plan(ledger: Ledger, plan: Plan, doubt: str) -> None:
    """Record what is known of the arithmetic of a run, and why it may not be resumable."""
    ledger.add(
        "plan",
        planned_steps=plan.planned_steps,
        batches_per_epoch=plan.batches_per_epoch,
        accumulation=plan.accumulation,
        doubt=doubt,
    )


def healed(ledger: Ledger, heals: Sequence[Heal]) -> None:
    """Record what the guard has put right, each once, whichever supervisor saw it first."""
    if not heals:
        return
    kept = {_mark(event) for event in ledger.events if event.kind == "healed"}
    for heal in heals:
        if (heal.attempt, heal.rank, heal.number) not in kept:
            ledger.add("healed", **heal.to_mapping())


def _mark(event: Event) -> tuple[object, ...]:
    return tuple(event.values.get(name) for name in ("attempt", "rank", "number"))


def healing(events: Sequence[Event]) -> str:
    """Return what is to be said of all that was put right in place; an empty text when nothing was."""
    heals = [event for event in events if event.kind == "healed"]
    if not heals:
        return ""
    doubts = [str(event.values.get("doubt") or "a heal") for event in doubtful(events)]
    times = "once" if len(heals) == 1 else f"{len(heals)} times"
    same = "still bit-identical" if not doubts else f"maybe not bit-identical any more ({doubts[0]})"
    return f"healed {times} in place, {same}"


def doubtful(events: Sequence[Event]) -> list[Event]:
    """Return the heals after which the training may not be bit-identical, those left out that were trained anew."""
    found: list[Event] = []
    for event in events:
        if event.kind == "healed" and not event.values.get("identical"):
            found.append(event)
        elif event.kind == "attempt":
            start = event.values["start_step"]
            found = [heal for heal in found if start and heal.values["step"] <= start]
    return found


def conclusion(events: Sequence[Event]) -> Event | None:
    """Return how a run ended: its newest finished or stopped event, unless an attempt came after it."""
    last = newest(events, "finished", "stopped", "attempt")
    return None if last is None or last.kind == "attempt" else last


def hardened(events: Sequence[Event]) -> bool:
    """Return whether the trainer of a run is hardened."""
    job = newest(events, "job")
    return bool(job and job.values["hardened"])


def foreign(events: Sequence[Event]) -> bool:
    """Return whether the trainer of a run is one that fluxguard does not know."""
    job = newest(events, "job")
    return bool(job and job.values.get("foreign"))


def _goes_on(events: Sequence[Event]) -> bool:
    """Return whether a trainer that fluxguard does not know goes on by itself, as one whose ranks start again must."""
    job = newest(events, "job")
    return bool(job and job.values.get("goes_on"))


def accumulation(events: Sequence[Event]) -> int:
    """Return the batches of one optimizer step."""
    job = newest(events, "job")
    return int(job.values.get("accumulation", 1)) if job else 1


def incidents(events: Sequence[Event]) -> int:
    """Return how many incidents there were."""
    return sum(event.kind == "incident" for event in events)


def setbacks(events: Sequence[Event]) -> list[Setback]:
    """Return the setbacks since the run was last stopped: whoever starts it again wants it tried again."""
    found: list[Setback] = []
    for event in events:
        if event.kind == "stopped":
            found.clear()
        elif event.kind == "incident":
            values = event.values
            found.append(
                Setback(
                    cause=str(values.get("cause", "")),
                    origin=str(values.get("origin", TRAINER)),
                    place=str(values.get("place", "")),
                    step=int(values.get("step", 0)),
                    progressed=bool(values.get("progressed")),
                )
            )
        elif event.kind == "decision" and found:
            after, remedy = float(event.values.get("after") or 0), event.values.get("remedy")
            found[-1] = replace(found[-1], after=after, remedy=remedy)
    return found


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something that a run does otherwise than its command says, until it ends."""

    name: str
    """As in `launch.remedies`."""
    flags: tuple[str, ...]
    """What changed, for people."""
    reason: str
    at: float
    """When it was decided, seconds since the epoch."""

    @property
    def words(self) -> str:
        """What it is, in words."""
        return f"{self.name} ({', '.join(self.flags)})" if self.flags else self.name


def net(taken: Iterable[Remedy]) -> list[Remedy]:
    """Return what a run does otherwise in all: each remedy once, with its newest reason, whatever its rungs were."""
    found: dict[str, Remedy] = {}
    for one in taken:
        before = found.pop(one.name, None)
        found[one.name] = replace(one, flags=net_flags((*before.flags, *one.flags))) if before else one
    return list(found.values())


def remedies(events: Sequence[Event]) -> list[Remedy]:
    """Return what a run does otherwise by now, in the order in which it was decided.

    Another command, which may be given until something was trained, begins without them.
    """
    found: list[Remedy] = []
    command = None
    for event in events:
        values = event.values
        if event.kind == "job":
            if command is not None and values.get("command") != command:
                found.clear()
            command = values.get("command", command)
        elif event.kind == "decision" and values.get("remedy") and values.get("action") == "restart":
            flags = tuple(str(flag) for flag in values.get("flags") or ())
            reason = str(values.get("reason", ""))
            found.append(Remedy(name=str(values["remedy"]), flags=flags, reason=reason, at=event.at))
    return found
