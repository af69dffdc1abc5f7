"""The limit of one wait for a batch: it counts from the last byte that a worker which owes something has read.

Ten times as long is the end, whatever is read: a worker may try the same again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fluxguard import limits
from fluxguard.guard import pulse
from fluxguard.guard.crew import Crew
from fluxguard.guard.progress import ProcessMoved, Silence
from fluxguard.guard.watcher import Wait, awake, lost, watcher

WHAT = "a batch from the loader"
_LOOK, _LOOKS = 1.0, 10  # seconds between two looks at what the workers read; so many within a limit, at least


class BatchWait:
    """A wait that costs one entry in the watcher until its first look, which nearly all are over before."""

    def __init__(self, crew: Crew, due: Callable[[Wait], float | None]) -> None:
        self.since = 0.0
        """When it began, monotonic seconds."""
        self.limit: float | None = None
        """Seconds; None when there is none."""
        self._crew = crew
        self._due = due
        self._kind = ""
        self._wait: Wait | None = None
        self._look: Wait | None = None
        self._silence = Silence(0.0, 0.0)
        self._slept = 0.0
        self._reads: dict[int, ProcessMoved] = {}

    def begins(self) -> None:
        """Let it begin now, whether or not it had begun before."""
        self.ends()
        self._kind = "first_batch" if self._crew.starting() else "batch"
        self.since = now = time.monotonic()
        self.limit = limits.current().wait.first_batch if self._crew.starting() else limits.current().wait.batch
        if self.limit is not None:
            self._reads = {}
            self._look = Wait(WHAT, min(_LOOK, self.limit / _LOOKS), now, self._looks, False)
            watcher().open(self._look)

    def ends(self) -> None:
        """Let it be over, for whatever reason."""
        look, wait = self._look, self._wait
        self._look = self._wait = None
        for one in (look, wait):
            if one is not None:
                watcher().close(one)

    def completed(self) -> None:
        """Note that the batch has come: the longest silence before it is no fault the next time."""
        if self._wait is not None and lost() == self._slept:
            self._silence.heard(awake())
            pulse.completed(self._kind, self._silence.longest)

    def is_open(self, wait: Wait) -> bool:
        """Return whether it is this one that is open."""
        return wait is self._wait

    def _looks(self, look: Wait) -> float | None:
        if look is not self._look or self.limit is None:
            return None
        if self._wait is None:
            self._silence, self._slept = Silence(self.limit, awake() - look.limit), lost()
            self._wait = wait = Wait(WHAT, self.limit, look.since, self._due, pulse.begun())
            watcher().open(wait)
        wait, pids = self._wait, self._crew.pids(self._crew.holding())
        known = self._reads
        self._reads = reads = {pid: known.get(pid) or ProcessMoved(pid) for pid in pids}
        if wait is not None and True in [reads[pid].moved() for pid in pids if pid in known]:
            self._silence.heard(awake())
            wait.at = min(time.monotonic() + wait.limit, wait.since + limits.BATCH_CEILING * wait.limit)
        return look.limit
