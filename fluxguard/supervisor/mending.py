"""Setting broken cache files aside for a trainer that does not do it itself; it makes them again when they are gone.

Only what is proven broken by its own bytes, only `.npz` files, only in the folders of the data set, and never deleted.
"""

from __future__ import annotations

import logging
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.launch.remedies import CACHE_ASIDE, Change
from fluxguard.supervisor.incidents.bounded import Task

_log = logging.getLogger(__name__)

_CACHE = ".npz"
_ASIDE = ".broken"
_SEARCH_TAKES = 30.0
_ONE_FILE = 10.0
"""Seconds that the last file may take when the time for the search is over."""
_LONGEST_LINE = 4096
_CHUNK = 1 << 20


def offer(proof: Iterable[str], folders: Sequence[Path], cwd: Path, clock: Clock) -> Change | None:
    """Return the setting aside of the broken cache files, or None when none is found.

    Those that the proof names, else any in the folders, as far as they can be read in half a minute: what numpy says of
    a broken file does not name it.
    """
    lines = list(proof)
    # On a thread: a share that does not answer holds up a read for ever, and with it what is done about the run.
    broken, why = Task("cache files", lambda: _broken(lines, folders, cwd, clock)).result(_SEARCH_TAKES + _ONE_FILE)
    if not isinstance(broken, list):
        _log.warning("the search for broken cache files is %s", why)
        return None
    if not broken:
        return None
    files = tuple(map(str, broken))
    return Change(remedy=CACHE_ASIDE, flags=tuple(f"{file} set aside" for file in files), files=files)


def _broken(lines: Iterable[str], folders: Sequence[Path], cwd: Path, clock: Clock) -> list[Path]:
    named = {path for line in lines for path in _named(line, folders, cwd)}
    broken = [path for path in sorted(named) if why_broken(path)]
    if not broken:
        until = clock.monotonic() + _SEARCH_TAKES
        broken = [path for path in _caches(folders) if clock.monotonic() < until and why_broken(path)]
    return broken


def set_aside(files: Sequence[str]) -> None:
    """Rename broken cache files out of the trainer's way; one that cannot be renamed is left, with a warning."""
    if files:
        Task("cache files", lambda: _rename(files)).result(_SEARCH_TAKES)


def _rename(files: Iterable[str]) -> None:
    for file in files:
        try:
            if why_broken(Path(file)):
                os.rename(file, _free_name(file))
        except OSError as error:
            _log.warning("%s cannot be set aside: %s", file, error)


def why_broken(path: Path) -> str | None:
    """Return what is proven to be wrong with a cache file, or None; that it cannot be read proves nothing."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    while file.read(_CHUNK):
                        pass
    except OSError:
        return None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        return f"is damaged ({error})"
    return None


def _caches(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            yield from sorted(path for path in folder.iterdir() if path.suffix == _CACHE)
        except OSError:
            continue


def _named(line: str, folders: Sequence[Path], cwd: Path) -> Iterator[Path]:
    """Yield the cache files in the folders that a line names; a name may hold spaces."""
    line = line[-_LONGEST_LINE:]
    end = line.find(_CACHE)
    while end >= 0:
        end += len(_CACHE)
        starts = [0, *(at + 1 for at, sign in enumerate(line[:end]) if sign in " '\"=:(<")]
        for start in starts:
            path = cwd / line[start:end]
            if os.path.lexists(path) and _inside(path, folders):
                yield path
                break
        end = line.find(_CACHE, end)


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    parent = path.parent.resolve()
    return any(parent == folder.resolve() or folder.resolve() in parent.parents for folder in folders)


def _free_name(file: str) -> str:
    aside, number = file + _ASIDE, 1
    while os.path.lexists(aside):
        number += 1
        aside = f"{file}{_ASIDE}.{number}"
    return aside
