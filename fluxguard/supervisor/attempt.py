"""One attempt: started under a keeper, found again by its uuid and the identity of its keeper."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.heartbeat import Beat
from fluxguard.rundir import ATTEMPT_VARIABLE, LIMITS_VARIABLE, RUN_VARIABLE, RunDir, read_json, write_json
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.ledger import Event, Ledger, newest
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.output import Shown

_KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One life of the trainer."""

    uuid: str
    number: int
    """Counted from 1 over the whole run."""
    start_step: int
    """True steps of the state it started from; 0 from the beginning."""
    log_from: int
    """Where its output begins in the log, in bytes."""
    at: float
    """When it was started, seconds since the epoch."""
    keeper: Identity | None
    """None when the supervisor died between deciding to start it and writing down whom it had started."""
    kills_before: int = 0
    """Kills for memory that the kernel had counted before it."""
    weights_before: Sequence[int] | None = None
    """The stamp of the final weights that lay there when it was started, empty when there were none; None: unknown."""

    @property
    def mark(self) -> bytes:
        """The uuid as the heartbeat carries it; empty, like no heartbeat, when somebody has edited the ledger."""
        try:
            return uuid.UUID(self.uuid).bytes
        except ValueError:
            return b""

    def exit(self, run: RunDir) -> Exit | None:
        """Return how it ended, None while its keeper keeps it, or an empty Exit when that is gone without a word."""
        kept = self.keeper is not None and self.keeper.alive()
        # Looked at in this order: a keeper writes before it goes.
        written = read_json(run.exit(self.uuid))
        if written is None:
            return None if kept else Exit()
        return Exit(
            code=written.get("code"),
            signal=written.get("signal"),
            error=written.get("error"),
            at=float(written.get("at") or 0),
        )

    def true_step(self, beat: Beat | None, shown: Shown, *, hardened: bool) -> int:
        """Return the true steps that this attempt has come to.

        A hardened trainer knows them, on its bar too; any other counts its own process only. A beat may be older than
        the restoring of the state that the attempt started from.
        """
        if beat is not None:
            return max(beat.step, self.start_step)
        return max(shown.bar, self.start_step) if hardened else self.start_step + shown.bar

    def beats(self, run: RunDir) -> list[Beat]:
        """Return the last heartbeat of each of its ranks on this machine, by rank; readable after its death, too.

        Where an elastic agent has started the ranks again, those of the newest round.
        """
        folder = run.beats()
        found = (heartbeat.read(heartbeat.path_for(folder, rank)) for rank in heartbeat.ranks(folder))
        mine = [beat for beat in found if beat is not None and beat.attempt == self.mark]
        return newest_round(mine, time.time() - time.monotonic())

    def processes(self) -> list[Identity]:
        """Return every process of it that lives, its keeper left out."""
        return processes.of_attempt(self.uuid, self.keeper)


def newest_round(beats: Sequence[Beat], since: float) -> list[Beat]:
    """Return the beats of the ranks that were started last, together: the others wrote their last one before that.

    `since` is when the monotonic clock was 0, in seconds since the epoch. Pure.
    """
    began = max((beat.started for beat in beats), default=0.0)
    # A clock that was set may make all of them look old.
    return [beat for beat in beats if beat.at + since >= began] or list(beats)


def spawn(
    run: RunDir,
    ledger: Ledger,
    argv: Sequence[str],
    *,
    shown_argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    number: int,
    start_step: int,
    state: Path | None,
    kills_before: int,
    notes: Sequence[str] = (),
    by_itself: bool = False,
    weights_before: Sequence[int] | None = None,
    states_before: Mapping[str, str] | None = None,
) -> Attempt:
    """Start an attempt under a keeper; the ledger knows of it before it exists. Raises OSError.

    `shown_argv` is what may be written down; `argv` reaches the keeper in a file that is removed once it was read.
    `by_itself` says that the trainer goes on from a state that only it knows.
    """
    mark = str(uuid.uuid4())
    log_from = run.log.stat().st_size if run.log.exists() else 0
    started = ledger.add(
        "attempt",
        attempt=mark,
        number=number,
        start_step=start_step,
        state=str(state) if state else None,
        argv=list(shown_argv),
        log_from=log_from,
        kills_before=kills_before,
        notes=list(notes),
        by_itself=by_itself,
        weights_before=None if weights_before is None else list(weights_before),
        states_before=states_before,
    )
    marked = {**env, RUN_VARIABLE: str(run.root), ATTEMPT_VARIABLE: mark, LIMITS_VARIABLE: str(run.limits)}
    try:
        for stale in (*run.all_last_words(), run.stacks(0)):
            stale.unlink(missing_ok=True)
        write_json(run.spawn(mark), _spawn_values(run, mark, argv, cwd))
        keeping = [sys.executable, "-I", "-S", str(_KEEPER), str(run.spawn(mark))]
        pid = processes.detached(keeping, env=marked, cwd=run.root)
    except OSError:
        _did_not_start(run, ledger, mark, start_step)
        raise
    keeper = Identity.of(pid)
    ledger.add("spawned", attempt=mark, keeper=keeper.to_mapping() if keeper else {})
    return Attempt(
        uuid=mark,
        number=number,
        start_step=start_step,
        log_from=log_from,
        at=started.at,
        keeper=keeper,
        kills_before=kills_before,
        weights_before=weights_before,
    )


def _did_not_start(run: RunDir, ledger: Ledger, mark: str, step: int) -> None:
    with contextlib.suppress(OSError):
        run.spawn(mark).unlink(missing_ok=True)
    ledger.add("ended", attempt=mark, code=None, signal=None, step=step)


def _spawn_values(run: RunDir, mark: str, argv: Sequence[str], cwd: Path) -> dict[str, object]:
    return {
        "argv": list(argv),
        "cwd": str(cwd),
        "log": str(run.log),
        "exit": str(run.exit(mark)),
        "keeper": str(run.keeper(mark)),
    }


def last(run: RunDir, events: Sequence[Event]) -> Attempt | None:
    """Return the newest attempt in the ledger, or None before the first."""
    begun = newest(events, "attempt")
    if begun is None:
        return None
    mark = str(begun.values["attempt"])
    spawned = next((e for e in reversed(events) if e.kind == "spawned" and e.values.get("attempt") == mark), None)
    keeper = Identity.from_mapping(spawned.values["keeper"]) if spawned else _unrecorded_keeper(run, mark)
    return Attempt(
        uuid=mark,
        number=int(begun.values["number"]),
        start_step=int(begun.values["start_step"]),
        log_from=int(begun.values["log_from"]),
        at=begun.at,
        keeper=keeper,
        kills_before=int(begun.values.get("kills_before", 0)),
        weights_before=begun.values.get("weights_before"),
    )


def _unrecorded_keeper(run: RunDir, mark: str) -> Identity | None:
    """Return the keeper of an attempt whose supervisor died before it could write down whom it had started."""
    written = read_json(run.keeper(mark))
    identity = Identity.of(int(written["keeper"])) if written else None
    return identity if identity is not None and processes.names(identity, mark) else None


def known(events: Sequence[Event]) -> frozenset[str]:
    """Return the uuids of all attempts."""
    return frozenset(str(event.values["attempt"]) for event in events if event.kind == "attempt")


def closed(events: Sequence[Event], mark: str) -> bool:
    """Return whether the ledger says how the attempt ended."""
    return any(event.kind in ("ended", "finished") and event.values["attempt"] == mark for event in events)


def forget(run: RunDir, mark: str) -> None:
    """Remove the command line of an attempt that has started: it may hold what must not be kept."""
    if os.path.exists(run.keeper(mark)) or os.path.exists(run.exit(mark)):
        run.spawn(mark).unlink(missing_ok=True)
