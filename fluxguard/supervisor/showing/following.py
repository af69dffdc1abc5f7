"""Showing a run to somebody who only reads: the trainer's own output and the events, until the run ends.

The supervisor is another, detached process from the start, so that nothing that happens to the reader (a closed page,
a broken pipe, SIGKILL) happens to the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.errors import InputError
from fluxguard.launch import job
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import foreground, settling
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor.ledger import Event, Subscriber
from fluxguard.supervisor.order import Order
from fluxguard.supervisor.ownership import owner
from fluxguard.supervisor.sensing import processes

_LOOK = 0.25
_HANDING_OVER = 15.0
"""How long a run that somebody else supervises may be without a supervisor, as when a terminal is left."""
_AT_ONCE = 1 << 20
_STARTED_ALREADY = (
    "a training is going on in this folder; this shows it. What was changed since counts when it was stopped "
    "(fluxguard stop) and is started again"
)


@dataclass(frozen=True)
class Ended:
    """How a run ended for whoever followed it."""

    code: int
    """The exit code of its supervisor."""
    reason: str


def follow(
    run: RunDir, arguments: Sequence[str], clock: Clock, *, show: Callable[[bytes], None], tell: Subscriber
) -> Ended:
    """Supervise a run by a detached `fluxguard ARGUMENTS...`, or by whom it has already, and show it to its end.

    `show` is given new bytes of the trainer's output as they are, `tell` the events. Whatever these raise (a reader
    that is gone) ends the showing, not the run. Raises InputError when the output folder cannot be one.
    """
    try:
        run.create()
    except OSError as error:
        raise InputError(run.output_dir, f"cannot be the output folder ({error.strerror})") from None
    log, events = _Tail(run.log), _Events(run, clock.wall(), tell)
    said = _Tail(foreground.log_of(run))
    pid = None
    if owner(run) is None:
        pid = foreground.detached(run, arguments)
    else:
        show(f"fluxguard: {_STARTED_ALREADY}\n".encode())
    alone_since: float | None = None
    while True:
        code = processes.exit_code(pid) if pid is not None else None
        if pid is None:
            # Looked at before the reading: what the supervisor wrote last is read then.
            alone = owner(run) is None
            alone_since = (alone_since or clock.monotonic()) if alone else None
            if alone_since is not None and clock.monotonic() - alone_since > _HANDING_OVER:
                pid = foreground.detached(run, arguments)
        conclusion = events.read()
        while data := log.read():
            show(data)
        if code is not None:
            return Ended(code, _reason(conclusion, said, code))
        if pid is None and alone_since is not None and conclusion is not None:
            return Ended(0 if conclusion.kind == "finished" else 1, str(conclusion.values["reason"]))
        clock.sleep(_LOOK)


def _reason(conclusion: Event | None, said: _Tail, code: int) -> str:
    if conclusion is not None:
        return str(conclusion.values["reason"])
    lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        lines.append("the supervisor was killed; the training may go on, and the same command takes it over")
    return "\n".join(lines)


def changed(order: Order) -> bool:
    """Whether the output folder holds what another command has trained."""
    written = read_json(order.run.job)
    if written is None or not settling.has_begun(order.run):
        return False
    return bool(job.changed(job.Job.from_mapping(written, str(order.run.job)), order.job))


class _Events:
    """Tells the events of a run that are new, and keeps the one that concluded it."""

    def __init__(self, run: RunDir, since: float, tell: Subscriber) -> None:
        self._path = run.ledger
        self._since = since
        self._told = 0
        self._tell = tell
        self._size = -1
        self._conclusion: Event | None = None

    def read(self) -> Event | None:
        """Tell what is new; return what concluded the run, if something did since."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return self._conclusion
        self._size = size
        new = [event for event in ledgers.read(self._path) if event.at >= self._since]
        for event in new[self._told :]:
            self._tell(event)
        self._told = len(new)
        last = ledgers.newest(new, "attempt", "finished", "stopped")
        self._conclusion = last if last is not None and last.kind != "attempt" else None
        return self._conclusion


class _Tail:
    """Reads what a file gains from now on, as bytes; one that is cut short or replaced is read on from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position, self._inode = _size_and_inode(path)

    def read(self) -> bytes:
        """Return the next new bytes; none when there are none now."""
        size, inode = _size_and_inode(self._path)
        if size < self._position or (inode != self._inode and self._inode):
            # Its old part was copied beside it: what was not read of that comes first.
            rest = b"" if inode != self._inode else _part(self._path.with_suffix(".log.1"), self._position)
            self._position, self._inode = 0, inode
            if rest:
                return rest
        self._inode = inode
        data = _part(self._path, self._position) if size > self._position else b""
        self._position += len(data)
        return data


def _size_and_inode(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_ino


def _part(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(_AT_ONCE)
    except OSError:
        return b""
