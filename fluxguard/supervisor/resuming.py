"""Runs that were interrupted, as by a reboot: which they are, and how each goes on by the command that began it."""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock
from fluxguard.launch.job import COMMAND_LINE
from fluxguard.launch.looks import MASK
from fluxguard.limits import ELSEWHERE
from fluxguard.rundir import FOLDER, RunDir, read_json
from fluxguard.supervisor import foreground, ownership, record
from fluxguard.supervisor import ledger as ledgers
from fluxguard.supervisor.sensing import processes

_LOOK = 1.0
_NOT_LOOKED_INTO = re.compile(r"\..*|old-\d{8}-\d{6}|.*-state|sample")

FINISHED, STOPPED, SUPERVISED, INTERRUPTED = "finished", "stopped", "supervised", "interrupted"
ANOTHER = "of another machine"


@dataclass(frozen=True)
class Found:
    """A run below a folder."""

    run: RunDir
    kind: str
    """finished, stopped, supervised, interrupted, or of another machine; only what was interrupted is resumed."""
    words: str


@dataclass(frozen=True)
class Command:
    """Arguments of our own command line that take a run up again."""

    arguments: tuple[str, ...]
    cwd: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unknown:
    """Why a run cannot be taken up again by what is known of it."""

    reason: str


def find(folder: Path) -> list[Found]:
    """Return how every run in a folder is, at any depth, by name; what was set aside by --fresh is left out."""
    return [judge(run) for run in runs_in(folder)]


def runs_in(folder: Path) -> list[RunDir]:
    """Return every run in a folder, at any depth, by name; what was set aside by --fresh is left out."""
    runs = []
    for root, folders, _ in os.walk(folder):
        if FOLDER in folders and (Path(root) / FOLDER / "ledger.jsonl").exists():
            runs.append(RunDir(root))
        if FOLDER in folders:
            runs += RunDir(root).nodes()
        folders[:] = sorted(name for name in folders if not _NOT_LOOKED_INTO.fullmatch(name))
    return runs


def judge(run: RunDir) -> Found:
    """Return how a run is."""
    if (owner := ownership.owner(run)) is not None:
        return Found(run, SUPERVISED, f"supervised by process {owner.pid}")
    if run.node and (host := str((read_json(run.job) or {}).get("host", ""))) not in ("", socket.gethostname()):
        return Found(run, ANOTHER, f"trains on {host}: it is taken up again there")
    last = record.conclusion(ledgers.read(run.ledger))
    if last is not None:
        return Found(run, last.kind, str(last.values["reason"]))
    return Found(run, INTERRUPTED, "its supervisor ended before the training did")


def command(run: RunDir, env: Mapping[str, str]) -> Command | Unknown:
    """Return how a run is taken up again, by its job.json alone; `env` is what the trainer would be given."""
    said = read_json(run.job)
    if said is None:
        return Unknown(f"{run.job} cannot be read: start it again by its own command")
    there = Path(str(said.get("output_dir", run.output_dir)))
    if there.resolve() != run.output_dir.resolve():
        return Unknown(f"it was moved or copied here, and its command saves into {there}: change that, then start it")
    arguments, cwd = said.get("arguments"), Path(str(said.get("arguments_in", "")))
    if not isinstance(arguments, list) or not arguments:
        return Unknown("it was begun by an older fluxguard: start it again by its own command")
    words = tuple(map(str, arguments))
    if flag := _masked_flag(words):
        return Unknown(
            f"its command line holds a secret ({flag}), which is not kept: start it again by its own command"
        )
    source = str(said.get("source", COMMAND_LINE))
    if source != COMMAND_LINE and not Path(source).is_file():
        return Unknown(f"{source} is not there any more")
    if not cwd.is_dir():
        return Unknown(f"{cwd}, where it was begun, is not there any more")
    return Command(words, cwd, tuple(_lost(said, env)))


def _masked_flag(words: Sequence[str]) -> str:
    """Return the flag whose value was not kept, or an empty text."""
    for index, word in enumerate(words):
        if MASK in word:
            return word.partition("=")[0] if "=" in word else words[index - 1] if index else word
    return ""


def _lost(said: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    names = said.get("secrets")
    missing = [str(name) for name in names if name not in env] if isinstance(names, list) else []
    if missing:
        yield f"{', '.join(missing)} {'was' if len(missing) == 1 else 'were'} set when it began, not now"


@dataclass(frozen=True)
class Resumed:
    """How a run went that was taken up again."""

    run: RunDir
    code: int
    """The exit code of its supervisor."""
    words: str


def resume(
    waiting: Sequence[tuple[RunDir, Command]], parallel: int, clock: Clock, tell: Callable[[RunDir, str], None]
) -> list[Resumed]:
    """Take runs up again, `parallel` at a time, each by a supervisor that outlives us; return how each went."""
    queue, going, done = deque(waiting), dict[int, RunDir](), list[Resumed]()
    while queue or going:
        while queue and len(going) < parallel:
            run, how = queue.popleft()
            if left := _wait_for_another_machine(run, clock, tell):
                done.append(Resumed(run, 1, left))
                continue
            try:
                going[foreground.detached(run, how.arguments, cwd=how.cwd)] = run
            except OSError as error:  # of one run: the others are taken up all the same
                done.append(Resumed(run, 1, f"could not be taken up again: {error}"))
                tell(run, done[-1].words)
                continue
            tell(run, f"taken up again; what its supervisor says is in {foreground.log_of(run)}")
        clock.sleep(_LOOK)
        for pid in [pid for pid in going if processes.exit_code(pid) is not None]:
            run, code = going.pop(pid), processes.exit_code(pid) or 0
            done.append(Resumed(run, code, _how(run, code)))
            tell(run, done[-1].words)
    return done


def _wait_for_another_machine(run: RunDir, clock: Clock, tell: Callable[[RunDir, str], None]) -> str:
    """Wait until a supervisor on another machine, if there is one, has been silent long enough; else say so."""
    other = ownership.elsewhere(run)
    if other is None:
        return ""
    tell(run, f"{other.words}; waiting for that")
    clock.sleep(max(_LOOK, ELSEWHERE - other.silent + _LOOK))
    return other.words if (other := ownership.elsewhere(run)) is not None else ""


def _how(run: RunDir, code: int) -> str:
    last = record.conclusion(ledgers.read(run.ledger))
    if last is not None:
        return str(last.values["reason"])
    return "goes on by itself" if code == 0 else f"could not be taken up again; see {foreground.log_of(run)}"
