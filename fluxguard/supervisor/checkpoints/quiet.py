"""States of an unhardened trainer, listed with digests while it trains on: damage that comes later is then seen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import states, verdicts
from fluxguard.supervisor.checkpoints.states import Plan

_QUIET = 5.0
"""Seconds since the last write into a state: its trainer has gone on to something else."""
_EVERY = 2.0
_LONGEST_REST = 60.0


def quiet(output_dir: Path, *, since: float, now: float, others: Mapping[str, str] | None = None) -> list[Path]:
    """Return the states that nobody has listed and nobody writes any more.

    `since` and `now` are seconds since the epoch; which states belong to another training is said by `others`, and by
    `since`, as for `states.seal`. Raises OSError when the folder does not answer or a state is removed meanwhile.
    """
    unlisted = (folder for folder in states.candidates(output_dir) if not verdicts.has_manifest(folder))
    mine = (folder for folder in unlisted if not states.is_of_another(folder, since, others))
    return [folder for folder in mine if states.written_at(folder) <= now - _QUIET]


class Lister:
    """Lists states on a thread of its own: a large one takes seconds to read, and a share may never answer."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._tried: set[object] = set()
        self._looked_at = 0.0

    def look(self, plan: Plan, *, since: float, now: float, others: Mapping[str, str] | None = None) -> None:
        """List what has become quiet; returns at once. While an earlier look still goes on, nothing is begun."""
        if not plan.steps_per_epoch or abs(now - self._looked_at) < _EVERY:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._looked_at = now
        self._thread = threading.Thread(target=self._list, args=(plan, since, now, others), name="states", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: they are listed when the trainer has ended
            self._thread.start()

    def rest(self) -> None:
        """Wait until nothing is being listed, a minute at most: a state must not be moved meanwhile."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(_LONGEST_REST)

    def _list(self, plan: Plan, since: float, now: float, others: Mapping[str, str] | None) -> None:
        with contextlib.suppress(OSError):
            for folder in quiet(self._run.output_dir, since=since, now=now, others=others):
                tried = (folder, states.mark(folder))
                if tried not in self._tried:
                    self._tried.add(tried)
                    with contextlib.suppress(StateUnusable):  # said when a run is to go on from it
                        states.with_manifest(folder, plan)
