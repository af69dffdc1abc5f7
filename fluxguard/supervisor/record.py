"""What the ledger of a run adds up to."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fluxguard.rundir import RunDir
from fluxguard.supervisor import states
from fluxguard.supervisor.ledger import Event, Ledger, newest
from fluxguard.supervisor.policy import Setback
from fluxguard.supervisor.signatures import TRAINER
from fluxguard.supervisor.states import Plan


def began(ledger: Ledger) -> float:
    """Return when the first attempt of a run was made, seconds since the epoch; older states are not the run's."""
    return next((event.at for event in ledger.events if event.kind == "attempt"), float("inf"))


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
    sealed = states.seal(run, plan, since=began(ledger))
    state = next(states.verified(run, plan, []), None)
    step = state.true_step if state else 0
    again = f", {reached - step} steps will be trained again" if reached > step else ""
    if refused:
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


def plan(ledger: Ledger, plan: Plan, doubt: str) -> None:
    """Record what is known of the arithmetic of a run, and why it may not be resumable."""
    ledger.add(
        "plan",
        planned_steps=plan.planned_steps,
        batches_per_epoch=plan.batches_per_epoch,
        accumulation=plan.accumulation,
        doubt=doubt,
    )


def conclusion(events: Sequence[Event]) -> Event | None:
    """Return how a run ended: its newest finished or stopped event, unless an attempt came after it."""
    last = newest(events, "finished", "stopped", "attempt")
    return None if last is None or last.kind == "attempt" else last


def hardened(events: Sequence[Event]) -> bool:
    """Return whether the trainer of a run is hardened."""
    job = newest(events, "job")
    return bool(job and job.values["hardened"])


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
    return found
