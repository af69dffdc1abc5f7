"""Trainings that write into the output folder of a run and are none of its attempts: started by hand, or unknown."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from fluxguard.errors import InputError
from fluxguard.launch import trainer
from fluxguard.launch.flags import Flags
from fluxguard.rundir import ATTEMPT_VARIABLE, RUN_VARIABLE, RunDir
from fluxguard.supervisor.sensing.identity import UNSEEN


@dataclass(frozen=True)
class Rival:
    """Another training in the output folder."""

    pid: int
    by_us: bool
    """Whether fluxguard started it, though the ledger does not know it."""

    @property
    def words(self) -> str:
        """What it is, in words."""
        if self.by_us:
            return (
                f"process {self.pid} still trains for this folder; fluxguard started it, but its ledger, which was "
                "removed or damaged, does not know it any more"
            )
        return f"process {self.pid} trains into this folder too, and was not started by fluxguard"


def find(run: RunDir, known: Collection[str], mine: Collection[int] = ()) -> Rival | None:
    """Return the eldest process that trains into the folder of a run, or None; what cannot be seen is none.

    `known` are the uuids of the attempts of the run, `mine` the processes of the one that lives.
    """
    found: dict[int, tuple[float, Rival]] = {}
    for process in psutil.process_iter():
        if process.pid in mine or process.pid == os.getpid():
            continue
        with contextlib.suppress(*UNSEEN, InputError):
            rival = _judge(process, run, known)
            if rival is not None:
                found[process.pid] = (process.create_time(), rival)
    return min(found.values(), key=lambda item: item[0])[1] if found else None


def _judge(process: psutil.Process, run: RunDir, known: Collection[str]) -> Rival | None:
    words = process.cmdline()
    env = _environ(process)
    if env.get(RUN_VARIABLE) == str(run.root):
        attempt = env.get(ATTEMPT_VARIABLE, "")
        return Rival(process.pid, by_us=True) if attempt and attempt not in known and _lives(process) else None
    if run.node and _of_another_node(run, env):
        return None
    script = trainer.script_index(words)
    if script is None or _supervises(words[:script]) or not _lives(process):
        return None
    return Rival(process.pid, by_us=False) if run.output_dir in _folders(process, words) else None


def _of_another_node(run: RunDir, env: Mapping[str, str]) -> bool:
    """Whether a process trains for another machine of the same run, as where one machine plays several."""
    said = env.get(RUN_VARIABLE)
    other = RunDir.of_root(said) if said else None
    return other is not None and bool(other.node) and other.output_dir == run.output_dir


def _supervises(words: Sequence[str]) -> bool:
    """Whether a command, up to its trainer, is `fluxguard supervise`: one that hands over to us trains nothing itself.

    However it was started, behind a wrapper too, the word before the verb names fluxguard.
    """
    return any("fluxguard" in before and word == "supervise" for before, word in pairwise(words))


def _folders(process: psutil.Process, words: list[str]) -> Iterator[Path]:
    """Yield where a trainer saves, links followed."""
    cwd = Path(process.cwd())
    yield Flags.of(trainer.find(words, cwd)).output_dir.resolve()


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except UNSEEN:
        return {}


def _lives(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)
