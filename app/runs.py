"""The runs that the page has started: a small file, so that a page started tomorrow knows them too."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fluxguard.rundir import FOLDER, read_json, write_json

FILE = Path("outputs") / ".fluxguard-runs.json"
"""Under the folder that the page works in."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as the page started it last; everything else about it is in its run directory."""

    output_dir: str
    train_sh: str
    started_at: float
    """When the page started its supervisor, seconds since the epoch."""
    pid: int
    """The supervisor that was started."""
    pid_started: float
    """When that process began: its number alone names nobody for ever."""
    log_from: int
    """Where what that supervisor says begins in supervisor.log, in bytes."""


class Registry:
    """Reads and writes the file; the newest run is the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> list[Run]:
        """Return the runs whose folders still exist; what is damaged in the file is passed over."""
        values = read_json(self.path)
        listed = values.get("runs") if values else None
        runs = [_run(entry) for entry in listed] if isinstance(listed, list) else []
        return [run for run in runs if run is not None and (Path(run.output_dir) / FOLDER).is_dir()]

    def find(self, output_dir: str) -> Run | None:
        """Return the run of an output folder, or None when the page never started one there."""
        return next((run for run in self.read() if run.output_dir == output_dir), None)

    def add(self, run: Run) -> None:
        """Put a run last; an earlier start in the same folder is replaced. Raises OSError."""
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            others = [known for known in self.read() if known.output_dir != run.output_dir]
            write_json(self.path, {"runs": [asdict(known) for known in (*others, run)]})


_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}


def _run(entry: Any) -> Run | None:
    """Return the run of an entry, or None when a field is missing or of the wrong kind."""
    if not isinstance(entry, dict):
        return None
    for field in fields(Run):
        value = entry.get(field.name)
        if isinstance(value, bool) or not isinstance(value, _KINDS[str(field.type)]):
            return None
    return Run(**{field.name: entry[field.name] for field in fields(Run)})
