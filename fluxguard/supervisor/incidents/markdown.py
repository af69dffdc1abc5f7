"""An incident as Markdown: for a terminal in the morning, and to paste into an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fluxguard.supervisor.incidents.texts import block, in_line, said

if TYPE_CHECKING:
    from fluxguard.supervisor.incidents.incident import Incident

_LINES = 25


def of(incident: Incident) -> str:
    """Return the report for a person."""
    return "\n".join(_parts(incident))


def _parts(incident: Incident) -> Iterator[str]:
    yield f"# Incident {incident.number}: {said(incident.cause)}"
    yield from ("", said(incident.words), "")
    if incident.advice:
        yield from (f"**What you can do.** {said(incident.advice)}", "")
    yield from (f"**What was done.** {said(incident.decision)}", "")
    if incident.flags:
        yield from (f"The next attempt does this otherwise: {said(', '.join(incident.flags))}.", "")
    if incident.proof:
        yield from ("**What shows it:**", "", *block(incident.proof), "")
    yield from _table(incident)
    yield from _list("Newer states that were not used:", incident.notes)
    yield from _list("Seen before, while it went on:", incident.troubles)
    if incident.lines:
        yield from ("Last lines of the trainer:", "", *block(incident.lines[-_LINES:]), "")
    yield from _list("Beside this report:", incident.files)
    yield from _list("Not to be had:", [f"{name}: {why}" for name, why in incident.missing.items()])


def _table(incident: Incident) -> Iterator[str]:
    unknown = {"stopped": "the run stopped"}.get(incident.went_on, incident.went_on)
    resumed = unknown if incident.resumed_step is None else f"step {incident.resumed_step}"
    rows = {
        "when": incident.when,
        "attempt": incident.attempt,
        "phase": incident.phase or "unknown",
        "step": incident.step,
        "detected after": f"{incident.detected_after_s:.1f} s",
        "resumed at": resumed,
        "from the state": incident.state,
        "steps to train again": incident.lost_steps,
        "it came from": incident.origin or None,
        "signals that ended it": ", ".join(map(str, incident.ending.get("rungs") or ())) or None,
        **incident.figures,
    }
    yield from ("| | |", "|---|---|")
    yield from (f"| {in_line(name)} | {in_line(value)} |" for name, value in rows.items() if value is not None)
    yield ""


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield from (title, "", *(f"- {said(item)}" for item in items), "")
