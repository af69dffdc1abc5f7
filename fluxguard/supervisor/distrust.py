"""States that verify and from which the trainer cannot go on all the same: they are not chosen again.

What a state holds is never unpickled here, so a pickle that is whole but holds the wrong thing is found by the trainer
alone. Which states that were is in the ledger, by the bytes on the disk: one of the same step that is saved later is
another one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.ledger import Event, Ledger

_log = logging.getLogger(__name__)

BROKEN = "broken state"
"""The cause that says it in the trainer's own words."""
_LOADING = "resume"
"""The phase in which a hardened trainer says that it loads a state, and nothing else."""
_UNKNOWN_ERROR = "error in the trainer"
"""Begins the cause of an error that no row of the table knows; a slow disk or full memory has its own."""
_ELSEWHERE = 2
"""As many states that nobody can go on from are no accident: the reason lies elsewhere."""


def why(diagnosis: Diagnosis, *, phase: str, start_step: int, step: int) -> str:
    """Return why the state that an attempt has started from is not to be used again, or an empty text. Pure.

    `phase` is the one in which the attempt ended by itself, empty when it was ended; one that came further than its
    state, to true `step`, had loaded it.
    """
    in_loading = phase == _LOADING and diagnosis.cause.startswith(_UNKNOWN_ERROR)
    if step > start_step or not (diagnosis.cause == BROKEN or in_loading):
        return ""
    return f"the trainer could not go on from the state of step {start_step}: {diagnosis.words}"


def note(ledger: Ledger, attempt: str, reason: str) -> None:
    """Record that the state which an attempt has started from is not to be used again, and why."""
    begun = next((one for one in ledger.events if one.kind == "attempt" and one.values["attempt"] == attempt), None)
    if not reason or begun is None or not begun.values.get("state"):
        return
    folder = Path(str(begun.values["state"]))
    if mark := states.stamp(folder):
        step = begun.values["start_step"]
        ledger.add("distrusted", attempt=attempt, state=str(folder), step=step, mark=mark, words=reason)


def known(events: Sequence[Event], *, ever: bool = False) -> dict[str, str]:
    """Return the states that are not to be used, each with the reason: since the run was last stopped, or `ever`.

    Whoever starts a stopped run again may have mended what the reason really was.
    """
    found: dict[str, str] = {}
    for event in events:
        if event.kind == "stopped" and not ever:
            found.clear()
        elif event.kind == "distrusted":
            found[str(event.values.get("mark"))] = str(event.values.get("words"))
    return found


def reason(distrusted: Mapping[str, str], folder: Path) -> str:
    """Return why a state is not to be used, or an empty text."""
    return distrusted.get(states.stamp(folder), "") if distrusted else ""


def refusal(distrusted: Mapping[str, str]) -> str:
    """Return why a run that has no other state left does not begin anew, or an empty text when it may. Pure.

    One state that cannot be loaded is a broken one. When several cannot, it is more likely something else, such as
    another version of torch: then all of them are kept, and nothing is trained again.
    """
    if len(distrusted) < _ELSEWHERE:
        return ""
    return (
        f"the trainer could not go on from any of the {len(distrusted)} states that there were, so the reason is "
        "probably not in them (another version of torch or of the trainer?): nothing is trained again from the "
        "beginning. Mend that and start the run again, or begin anew with --fresh"
    )


def give_back(run: RunDir, distrusted: Mapping[str, str]) -> None:
    """Put those that were set aside for it where states are looked for: a run that stops without any keeps them."""
    folders = sorted(run.aside.iterdir()) if distrusted and run.aside.is_dir() else []
    for folder in folders:
        try:
            target = run.states / f"step-{manifest.read(folder).true_step:08d}"
            if states.stamp(folder) in distrusted and not target.exists():
                folder.rename(target)
        except (OSError, StateUnusable) as error:
            _log.warning("%s cannot be put back: %s", folder, error)
