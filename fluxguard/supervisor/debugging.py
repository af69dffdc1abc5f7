"""What the ranks of a training get in their environment: a flight recorder, and more words where somebody asked.

The words are asked for by a file, so that they can be for a run that another supervisor looks after: its next attempt
takes them, and no later one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluxguard.launch.ranks import ACCELERATE, Ranks
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import ledger
from fluxguard.supervisor.incidents import recorder, versions
from fluxguard.supervisor.ledger import Event, newest

VARIABLES: Mapping[str, str] = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "NCCL_DEBUG": "INFO",
    "PYTHONFAULTHANDLER": "1",
}
"""What --debug-distributed sets, the same for all ranks: with some only, torch waits for ever at its start."""
NOTE = "debugs its collectives, on all ranks alike: " + " ".join(f"{name}={value}" for name, value in VARIABLES.items())
NEXT = f"the next attempt {NOTE}; one that goes on is left as it is, and later ones are as always"
_FLAG = "debug-distributed.json"
_NEW_NAMES = (2, 10)
"""The torch from which on the recorder's old names are surely no longer needed: it warns of them."""
_ENTRIES = "2000"
"""Collectives that a rank remembers, as newer versions of torch do by themselves."""


def ask(run: RunDir) -> None:
    """Let the next attempt of a run debug its collectives. Raises OSError."""
    write_json(run.root / _FLAG, {})


def asked(run: RunDir) -> bool:
    """Return whether the next attempt is to debug its collectives."""
    return (run.root / _FLAG).exists()


def taken(run: RunDir) -> None:
    """Say that an attempt was started that does; later ones are as always."""
    with contextlib.suppress(OSError):
        (run.root / _FLAG).unlink()


def words(run: RunDir, events: Sequence[Event], *, running: bool) -> str:
    """Return what is to be said of a run about this, or an empty text."""
    last = newest(events, "attempt")
    now = running and last is not None and NOTE in last.values.get("notes", ())
    return "; ".join([*([f"this attempt {NOTE}"] if now else []), *([NEXT] if asked(run) else [])])


def detailed(run: RunDir, env: Mapping[str, str]) -> bool:
    """Return whether the newest attempt debugs its collectives in detail, by us or by its user's environment `env`."""
    last = newest(ledger.read(run.ledger), "attempt")
    name, most = next(iter(VARIABLES.items()))
    return env.get(name, "").upper() == most or (last is not None and NOTE in last.values.get("notes", ()))


def alone(ranks: Ranks | None) -> str:
    """Return that a command starts one process though it names several, or an empty text.

    On processors accelerate leaves the starting to MPI, and without it starts one, without a word.
    """
    if (
        ranks is None
        or ranks.launcher != ACCELERATE
        or "cpu" not in ranks.options
        or "mpirun_hostfile" in ranks.options
    ):
        return ""
    if (ranks.per_node or 1) < 2:
        return ""
    return (
        f"`accelerate launch --cpu` starts one process, not {ranks.per_node}: for several on processors, "
        f"`ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu --num_processes {ranks.per_node}`"
    )


def environment(
    run: RunDir, env: Mapping[str, str], argv: Sequence[str], ranks: Ranks | None, *, debug: bool
) -> dict[str, str]:
    """Return the environment of an attempt; what the user has set of the recorder stays. Raises OSError.

    The recorder is for several ranks only: each writes what collectives it came to when one of them times out.
    """
    found = dict(env)
    if ranks is not None and (ranks.several or ranks.per_node != 1):
        folder = recorder.prefix(run).parent
        folder.mkdir(mode=0o700, exist_ok=True)
        given = _of_recorder(run, _torch(argv, env))
        if not any(env.get(name) for name in recorder.PREFIXES):
            found |= {name: value for name, value in given.items() if name in recorder.PREFIXES}
        if not any(env.get(name) for name in recorder.SIZES):
            found |= {name: value for name, value in given.items() if name in recorder.SIZES}
        found.setdefault(recorder.ON_TIMEOUT, "1")
    return {**found, **VARIABLES} if debug else found


def _of_recorder(run: RunDir, torch: tuple[int, ...]) -> dict[str, str]:
    """Return the recorder's variables by the names that a version of torch knows; by all of them for an unknown one."""
    names = 1 if torch >= _NEW_NAMES else 2
    prefix = str(recorder.prefix(run))
    return {**dict.fromkeys(recorder.PREFIXES[:names], prefix), **dict.fromkeys(recorder.SIZES[:names], _ENTRIES)}


def _torch(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version of the torch beside the program of a command; empty when it is not known."""
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath)) if argv else None
    version = versions.of_library("torch", Path(program)) if program else ""
    return tuple(map(int, found.groups())) if (found := re.match(r"(\d+)\.(\d+)", version)) else ()
