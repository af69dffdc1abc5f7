"""The flight recorder of PyTorch's collectives: where it writes, and the files it leaves when one times out.

They are pickles of plain values. They are found and copied here; what is in them is read by `collectives`, which calls
nothing that a pickle names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fluxguard.rundir import RunDir

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What the names of its files begin with; the rank follows. The newest name first, as below."""
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""How many collectives each rank remembers; older versions of torch remember none by themselves."""
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Whether it writes at all when a collective times out; older versions do not by themselves."""
_DEFAULTS = ("~/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
_MOST = 16
_LARGEST = 16 << 20


def prefix(run: RunDir) -> Path:
    """Return what the names of the files of a run begin with, where the user has not said otherwise."""
    return run.root / "flight-recorder" / "rank_"


def dumps(env: Mapping[str, str], since: float, ours: Path | None = None) -> list[Path]:
    """Return the dumps that were written after `since` (seconds since the epoch), one per rank, by name.

    `env` is the trainer's: it may say where they lie; `ours` is where we have let them be written otherwise.
    """
    home = env.get("HOME") or os.path.expanduser("~")
    prefixes = [env[name] for name in PREFIXES if env.get(name)] or [*([str(ours)] if ours else []), *_DEFAULTS]
    found = {path for prefix in prefixes for path in _beginning(Path(prefix.replace("~", home, 1)), since)}
    return sorted(found)[:_MOST]


def _beginning(prefix: Path, since: float) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(prefix.parent))
    except OSError:
        return
    for name in names:
        path = prefix.parent / name
        if name.startswith(prefix.name) and name[len(prefix.name) :].isdigit() and _is_ours(path, since):
            yield path


def _is_ours(path: Path, since: float) -> bool:
    """Whether it is a plain file of ours: the usual place is open to everybody, and so is a link put there."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    mine = os.name == "nt" or seen.st_uid == os.getuid()
    return stat.S_ISREG(seen.st_mode) and mine and seen.st_mtime >= since and 0 < seen.st_size <= _LARGEST


def content(path: Path) -> bytes:
    """Return the bytes of a dump. Raises OSError; a link that has come to its place meanwhile is not followed."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        return file.read(_LARGEST)


def copied(path: Path, secrets: Iterable[str]) -> bytes:
    """Return the bytes of a dump, known secrets in it overwritten at the same length, so that it stays what it is.

    Raises OSError as `content` does.
    """
    data = content(path)
    for secret in sorted(secrets, key=len, reverse=True):
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data
