"""The run directory: where the files between trainer and supervisor lie, and how they are written.

Every file is written whole to a temporary name and renamed, or is append-only; each carries a version.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VERSION = 1
FOLDER = ".fluxguard"
NODES = "nodes"
"""In the run directory: a folder per machine, where a training goes over several."""

RUN_VARIABLE = "FLUXGUARD_RUN"
ATTEMPT_VARIABLE = "FLUXGUARD_ATTEMPT"
LIMITS_VARIABLE = "FLUXGUARD_LIMITS"

AGAIN = 75
"""Exit code of a fatal limit that another attempt may well pass (EX_TEMPFAIL)."""
NEVER = 78
"""Exit code of an end that would only repeat itself (EX_CONFIG)."""

BEATS_OF = "run"
"""In a folder of heartbeats outside the run directory: the file that names the run directory."""

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SHARED_MEMORY = Path("/dev/shm")
_REPLACE_TRIES = 5
_REPLACE_PAUSE = 0.05


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` so that a reader sees the old file or the new one, never a part, also after a power loss.

    Raises OSError; the old file is then untouched.
    """
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def replace(source: str | os.PathLike[str], target: Path) -> None:
    """Rename, trying again on Windows, where a reader that holds the target open forbids it for a moment."""
    for _ in range(_REPLACE_TRIES - 1):
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(_REPLACE_PAUSE)
        else:
            return
    os.replace(source, target)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write `values`, with the version, as `write_whole` does."""
    text = json.dumps({"version": VERSION, **values}, indent=2, ensure_ascii=False)
    write_whole(path, text.encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what `write_json` wrote, or None when the file is missing, unreadable or of another version."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and values.get("version") == VERSION else None


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the platform has that."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_node(name: str) -> bool:
    """Whether a name can be that of a machine: at most 63 letters, digits, dots, dashes, as host names have them."""
    return _NODE.fullmatch(name) is not None


class RunDir:
    """The paths of one run, in `OUTPUT_DIR/.fluxguard`; of one machine of several, in `nodes/NODE` there.

    Raises ValueError for a `node` that can be no name of one.
    """

    def __init__(self, output_dir: str | os.PathLike[str], node: str = "") -> None:
        self.output_dir = Path(output_dir).resolve()
        self.node = node
        """Which machine of several; empty where one trains alone."""
        self.root = self.output_dir / FOLDER
        if node:
            if not is_node(node):
                raise ValueError(f"{node!r} is no name of a machine")
            self.root = self.root / NODES / node

    @classmethod
    def of_root(cls, root: str | os.PathLike[str]) -> RunDir:
        """Return the run whose files are in `root`, as FLUXGUARD_RUN names it."""
        path = Path(root)
        if path.parent.name == NODES and path.parent.parent.name == FOLDER and is_node(path.name):
            return cls(path.parent.parent.parent, path.name)
        return cls(path.parent)

    def at(self, node: str) -> RunDir:
        """Return the same output folder as one machine of several has it. Raises ValueError."""
        return RunDir(self.output_dir, node)

    def nodes(self) -> list[RunDir]:
        """Return the run of each machine that has one in this output folder, by name."""
        try:
            names = sorted(os.listdir(self.output_dir / FOLDER / NODES))
        except OSError:
            return []
        found = (self.at(name) for name in names if is_node(name))
        return [run for run in found if run.ledger.exists() or run.job.exists()]

    def create(self) -> None:
        """Make the folders, closed to others; one that is there already is closed too."""
        for folder in (self.root, self.incidents, self.states):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in {self.output_dir / FOLDER, self.root}:
            folder.chmod(0o700)

    @property
    def job(self) -> Path:
        """The frozen job."""
        return self.root / "job.json"

    @property
    def run(self) -> Path:
        """Where the heartbeats are."""
        return self.root / "run.json"

    @property
    def limits(self) -> Path:
        """The limits of this run, for the guard."""
        return self.root / "limits.json"

    @property
    def learned(self) -> Path:
        """What the attempts so far have shown to be healthy, by the supervisor."""
        return self.root / "learned.json"

    @property
    def ledger(self) -> Path:
        """What happened, append-only."""
        return self.root / "ledger.jsonl"

    @property
    def log(self) -> Path:
        """What the trainer printed; the trainer's own stdout and stderr."""
        return self.root / "train.log"

    @property
    def lock(self) -> Path:
        """Held by the one supervisor."""
        return self.root / "lock"

    @property
    def owner(self) -> Path:
        """Who holds the lock: {pid, started}."""
        return self.root / "owner.json"

    @property
    def stop(self) -> Path:
        """Its presence asks the supervisor to stop the run."""
        return self.root / "stop.json"

    @property
    def incidents(self) -> Path:
        """One numbered folder per incident."""
        return self.root / "incidents"

    @property
    def states(self) -> Path:
        """Verified states, by true step."""
        return self.root / "states"

    @property
    def aside(self) -> Path:
        """States that do not verify, that a trainer could not go on from, or that embody the same steps as another."""
        return self.root / "aside"

    @property
    def timeline(self) -> Path:
        """Phases, steps, loss, GPU and memory over time, one sample a line; bounded."""
        return self.root / "timeline.jsonl"

    @property
    def watch_log(self) -> Path:
        """The log patterns of the user's own."""
        return self.root / "watch-log.yaml"

    def spawn(self, attempt: str) -> Path:
        """What the keeper is to start."""
        return self.root / f"spawn.{attempt}.json"

    def keeper(self, attempt: str) -> Path:
        """Who keeps the attempt and what it started: {keeper, trainer}, process numbers."""
        return self.root / f"keeper.{attempt}.json"

    def exit(self, attempt: str) -> Path:
        """How the attempt ended, by its keeper."""
        return self.root / f"exit.{attempt}.json"

    def last_words(self, rank: int) -> Path:
        """A fatal limit's verdict, by the guard."""
        return self.root / f"last-words.{rank}.json"

    def all_last_words(self) -> list[Path]:
        """Return those that are there, of all ranks."""
        return [path for path in self.root.glob("last-words.*.json") if path.suffixes[-2][1:].isdigit()]

    def healed(self, rank: int) -> Path:
        """What the guard put right without ending the process, one line each; append-only."""
        return self.root / f"healed.{rank}.jsonl"

    def stacks(self, rank: int) -> Path:
        """The stacks of a process that the guard ended."""
        return self.root / f"stacks.{rank}.txt"

    @property
    def kept_beats(self) -> Path:
        """The last heartbeats of a run that is over, and all of them where there is no memory for them."""
        return self.root / "beats"

    def beats(self) -> Path:
        """Return the folder of the heartbeats: the one in run.json, else where this machine would put it."""
        known = read_json(self.run)
        return Path(known["beats"]) if known and isinstance(known.get("beats"), str) else self._beats_here()

    def open_beats(self) -> Path:
        """Make the folder of the heartbeats, in memory where the platform has that, and record it in run.json."""
        folder = self._beats_here()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder != self.kept_beats:
            write_whole(folder / BEATS_OF, os.fsencode(self.root))
        write_json(self.run, {"beats": str(folder)})
        return folder

    def _beats_here(self) -> Path:
        # A name that others cannot guess is not needed: the folder itself is closed to them, or it is not ours.
        prefix = beats_in_memory()
        if prefix is not None:
            folder = prefix.with_name(f"{prefix.name}{_digest(str(self.root)):08x}")
            if not folder.exists() or folder.stat().st_uid == os.getuid():
                return folder
        return self.kept_beats


def end_request(beats: str | os.PathLike[str], rank: int) -> Path | None:
    """Return the file that asks a rank to end itself, in the folder of its heartbeats; None where that is no memory."""
    here = beats_in_memory()
    folder = Path(beats)
    in_memory = here is not None and folder.parent == here.parent and folder.name.startswith(here.name)
    return folder / f"end.{rank}" if in_memory else None


def beats_in_memory() -> Path | None:
    """Return what the folders of this user's heartbeats in memory begin with; None where the platform has none."""
    if sys.platform.startswith("linux") and os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY / f"fluxguard-{os.getuid()}-"
    return None


def _digest(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())
