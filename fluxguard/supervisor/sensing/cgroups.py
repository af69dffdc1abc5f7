"""The memory of the control groups that a process is in, of version 1 and 2: what it may use, uses, and died of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_NO_LIMIT = 1 << 60
"""Version 1 writes no limit as a very large number."""


@dataclass(frozen=True)
class Group:
    """One control group that counts memory."""

    folder: Path
    version: int

    def used(self) -> int | None:
        """Return the bytes in use that the kernel cannot just drop: without the cache of files."""
        held = _number(self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))
        if held is None:
            return None
        stat = _counts(self.folder / "memory.stat")
        names = ("file", "shmem") if self.version == 2 else ("total_cache", "total_shmem")
        files, shared = (stat.get(name, 0) for name in names)
        return max(0, held - max(0, files - shared))

    def limit(self) -> int | None:
        """Return the bytes that it may use, None for no limit."""
        limit = _number(self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"))
        return limit if limit is not None and limit < _NO_LIMIT else None

    def oom_kills(self) -> int | None:
        """Return how many of its processes the kernel has killed for memory."""
        return _counts(self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")).get("oom_kill")


def of_process(pid: int | None = None, *, proc: Path = _PROC, root: Path = _ROOT) -> tuple[Group, ...]:
    """Return the groups of a process (of this one without `pid`), its own first, then those around it that are seen.

    In a container the path that the process is told may be the host's and lead nowhere: the outermost folder is its own
    group then.
    """
    try:
        lines = (proc / (str(pid) if pid else "self") / "cgroup").read_text().splitlines()
    except OSError:
        return ()
    found = [group for line in lines for group in _around(line, root)]
    # Where both versions are mounted, only one of them counts memory.
    return tuple(group for group in found if group.used() is not None or group.oom_kills() is not None)


def _around(line: str, root: Path) -> Iterator[Group]:
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number == "0":
        top, version = root, 2
    elif "memory" in controllers.split(","):
        top, version = root / "memory", 1
    else:
        return
    inside = PurePosixPath("/") / path
    for part in (inside, *inside.parents):
        folder = top / str(part).lstrip("/")
        if ".." not in part.parts and folder.is_dir():
            yield Group(folder, version)


def tightest(groups: Iterable[Group]) -> tuple[int | None, int | None]:
    """Return (used, limit) in bytes of the group with the least room left; (None, None) where none has a limit."""
    known = [(used, limit) for group in groups if (limit := group.limit()) and (used := group.used()) is not None]
    return min(known, key=lambda pair: pair[1] - pair[0], default=(None, None))


def oom_kills(groups: Iterable[Group]) -> int | None:
    """Return the kills for memory that the innermost group counts, or None when none counts them."""
    return next((kills for group in groups if (kills := group.oom_kills()) is not None), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _counts(path: Path) -> Mapping[str, int]:
    """Return the numbers of a file of names and numbers; empty when it cannot be read."""
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    except (OSError, ValueError):
        return {}
