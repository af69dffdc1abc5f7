"""Whether a run may be supervised here and now; what stands against it is said before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.rundir import VERSION, RunDir, read_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor import rivals
from fluxguard.supervisor.ledger import Event


def check(run: RunDir) -> list[str]:
    """Return what is to be said of the files of a run that are not as they were written, for its owner.

    Raises InputError for files of a newer fluxguard, and for a training in this folder that is none of the run's.
    """
    refuse_newer(run)
    events = ledgers.read(run.ledger)
    if not _goes_on(run, events) and (rival := rivals.find(run, attempts.known(events))):
        raise InputError(run.output_dir, f"{rival.words}; end it first")
    return _damaged(run)


def refuse_newer(run: RunDir) -> None:
    """Raise InputError when a newer fluxguard has written the job or the ledger of a run."""
    lines = [run.job, *([run.ledger] if run.ledger.exists() else [])]
    for path in lines:
        newest = max((_version(text) for text in _texts(path)), default=0)
        if newest > VERSION:
            raise InputError(path, f"was written by a newer fluxguard (version {newest}, this one knows {VERSION})")


def refuse_copy(run: RunDir) -> None:
    """Raise InputError for a folder that was copied or moved: what it says of processes is about another one."""
    said = (read_json(run.job) or {}).get("output_dir")
    if isinstance(said, str) and Path(said).resolve() != run.output_dir:
        raise InputError(run.output_dir, f"is a copy of {said}, or was moved from there; name that folder")


def _goes_on(run: RunDir, events: Sequence[Event]) -> bool:
    """Whether an attempt of the run lives, or nobody has yet seen how it ended."""
    attempt = attempts.last(run, events)
    return attempt is not None and not attempts.closed(events, attempt.uuid) and bool(attempt.processes())


def _damaged(run: RunDir) -> list[str]:
    found = []
    if run.job.exists() and read_json(run.job) is None:
        found.append(f"{run.job} cannot be read; it is written anew")
    if passed_over := ledgers.unreadable(run.ledger):
        lines = "a line" if passed_over == 1 else f"{passed_over} lines"
        found.append(f"{lines} of {run.ledger} cannot be read and {'is' if passed_over == 1 else 'are'} passed over")
    return found


def _texts(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return data.splitlines() if path.suffix == ".jsonl" else [data]


def _version(text: bytes) -> int:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        return 0
    version = values.get("version") if isinstance(values, dict) else None
    return version if isinstance(version, int) else 0
