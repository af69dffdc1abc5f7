"""The machines of one run that share an output folder, each with a supervisor and a ledger of its own."""

from __future__ import annotations

from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger, record


def others(run: RunDir) -> list[RunDir]:
    """Return the same run on the other machines, as far as they share this folder."""
    return [one for one in run.nodes() if one.node != run.node] if run.node else []


def finished(run: RunDir, since: float) -> str:
    """Return the other machine that finished the training after `since` (seconds since the epoch); else nothing."""
    for other in others(run):
        last = record.conclusion(ledger.read(other.ledger))
        if last is not None and last.kind == "finished" and last.at > since:
            return other.node
    return ""
