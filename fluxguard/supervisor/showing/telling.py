"""Events as one line each, for the terminal and the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.sensing import heals


def text(event: Event) -> str | None:
    """Return what an event says to a person, or None for one that says nothing new."""
    values = event.values
    match event.kind:
        case "attempt":
            beginning = "where it goes on by itself" if values.get("by_itself") else "from the beginning"
            where = f"from the state of step {values['start_step']}" if values.get("state") else beginning
            return "\n         ".join([f"attempt {values['number']} starts {where}", *values.get("notes", ())])
        case "adopted":
            return f"attempt {values['number']} was left by another supervisor; watching it now"
        case "plan" if values.get("planned_steps"):
            doubt = values.get("doubt")
            return f"{values['planned_steps']} steps are planned" + (f"\n         but: {doubt}" if doubt else "")
        case "healed":
            return heals.words(values)
        case "round":
            ranks = ", ".join(map(str, values.get("ranks") or ()))
            return f"round {values['number']}: rank {ranks} of this machine trains again, at step {values['step']}"
        case "incident":
            lost = f", {values['lost_steps']} steps to train again" if values.get("lost_steps") else ""
            report = f"\n         report: {values['report']}" if values["report"] else ""
            return f"incident at step {values['step']}: {values['words'].rstrip('.')}{lost}.{report}"
        case "trouble":
            advice = f"\n         {values['advice']}" if values.get("advice") else ""
            return f"trouble at step {values.get('step')}: {str(values.get('words')).rstrip('.')}.{advice}"
        case "would":
            return _would(values)
        case "decision" if values.get("remedy"):
            return f"the next attempt is made otherwise: {values['remedy']} ({', '.join(values.get('flags') or ())})"
        case "decision" if values.get("after"):
            return f"next attempt in {values['after']:.0f} s"
        case _:
            return None


def _would(values: Mapping[str, Any]) -> str:
    """Return what another supervision would do."""
    pids = ", ".join(map(str, values.get("kill") or ()))
    end = f"end process {pids} and " if pids else ""
    if values["action"] == "stop":
        do = f"{end}stop the run"
    else:
        do = f"{end}start again from its newest state that verifies: {shlex.join(values.get('argv') or ())}"
    return f"{values['words']}\n         would {do}\n         because {values['reason']}"
