"""Events as one line each, for the terminal and the page."""

from __future__ import annotations

from fluxguard.supervisor.ledger import Event


def text(event: Event) -> str | None:
    """Return what an event says to a person, or None for one that says nothing new."""
    values = event.values
    match event.kind:
        case "attempt":
            where = f"from the state of step {values['start_step']}" if values.get("state") else "from the beginning"
            return f"attempt {values['number']} starts {where}"
        case "adopted":
            return f"attempt {values['number']} was left by another supervisor; watching it now"
        case "plan" if values.get("planned_steps"):
            return f"{values['planned_steps']} steps are planned"
        case "incident":
            lost = f", {values['lost_steps']} steps to train again" if values.get("lost_steps") else ""
            return f"incident at step {values['step']}: {values['words']}{lost}\n         report: {values['report']}"
        case "decision" if values.get("after"):
            return f"next attempt in {values['after']:.0f} s"
        case _:
            return None
