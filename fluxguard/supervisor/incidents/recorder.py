"""The flight recorder of PyTorch's collectives: files it leaves when a collective times out.

They are pickles. They are found, copied and named; nothing here ever unpickles one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DEFAULTS = ("~/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
_MOST = 16
_LARGEST = 16 << 20


def dumps(env: Mapping[str, str], since: float) -> list[Path]:
    """Return the dumps that were written after `since` (seconds since the epoch), one per rank, by name.

    `env` is the trainer's: it may say where they lie.
    """
    home = env.get("HOME") or os.path.expanduser("~")
    prefixes = [env[name] for name in _PREFIXES if env.get(name)] or list(_DEFAULTS)
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


def copied(path: Path, secrets: Iterable[str]) -> bytes:
    """Return the bytes of a dump, known secrets in it overwritten at the same length, so that it stays what it is.

    Raises OSError; a link that has come to its place meanwhile is not followed.
    """
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        data = file.read(_LARGEST)
    for secret in sorted(secrets, key=len, reverse=True):
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data
