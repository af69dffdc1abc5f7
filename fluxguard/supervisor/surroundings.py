"""What happens around a training that goes on: its folder goes away, another training writes into it.

Neither ends the run: what is told is for the person who can do something about it.
"""

from __future__ import annotations

import os

from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor import ownership, rivals
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis, named
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.ledger import Ledger

_EVERY = 30.0
_OTHERS_EVERY = 4
GONE = "output folder gone"
SECOND = "second training"


class Surroundings:
    """Looks around now and then, and tells each thing once per attempt."""

    def __init__(self, run: RunDir, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        self._looked_at = 0.0
        self._looks = 0
        self._told: set[tuple[str, ...]] = set()
        self._was_gone = False

    def look(self, attempt: Attempt, now: float, step: int) -> None:
        """Look around when it is time; `now` is monotonic, in seconds."""
        self._was_gone = self._was_gone or gone(self._run)
        if now - self._looked_at < _EVERY:
            return
        self._looked_at = now
        ownership.sign(self._run)
        # For a second training every process of the machine is looked at, which costs more.
        others, self._looks = self._looks % _OTHERS_EVERY == 0, self._looks + 1
        if gone(self._run):
            words = f"The output folder {self._run.output_dir} is gone: what this training saves may be lost."
            self._tell(attempt, step, GONE, words, "Bring the folder back, or stop the training.")
            return
        if not others:
            return
        mine = {one.pid for one in attempt.processes()}
        rival = rivals.find(self._run, attempts.known(self._ledger.events), mine)
        if rival is not None:
            words = f"{rival.words[:1].upper()}{rival.words[1:]}: both write the same files."
            self._tell(attempt, step, SECOND, words, "End one of the two.", str(rival.pid))

    def lost(self, attempt: Attempt) -> bool:
        """Whether the folder is gone, or came back without what was known of the attempt."""
        self._was_gone = self._was_gone or gone(self._run)
        return self._was_gone and attempt.uuid not in attempts.known(ledgers.read(self._run.ledger))

    def _tell(self, attempt: Attempt, step: int, kind: str, words: str, advice: str, which: str = "") -> None:
        mark = (attempt.uuid, kind, which)
        if mark not in self._told:
            self._told.add(mark)
            self._ledger.add("trouble", attempt=attempt.uuid, kind=kind, words=words, advice=advice, step=step)


def gone(run: RunDir) -> bool:
    """Whether the folder of a run has been removed, or its disk went away, whatever error a dead disk answers with."""
    return not os.path.isdir(run.root)


def words(run: RunDir) -> str:
    """Return what is to be said of a run whose folder is gone."""
    return (
        f"the output folder {run.output_dir} was removed, or its disk went away, while the training went on. When it "
        "is back, the same command goes on from what is in it"
    )


def restarted(run: RunDir, attempt: Attempt) -> Diagnosis | None:
    """Return the diagnosis of an attempt whose machine was started anew under it, or None."""
    if attempt.keeper is None or not attempt.keeper.before_restart() or attempt.exit(run) != Exit():
        return None
    return named("machine restarted")
