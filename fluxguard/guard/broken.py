"""The proof that a cache file is broken, and what happens to it then: it is set aside, so that it is made anew."""

from __future__ import annotations

import gc
import os
import stat
import struct
import traceback
import zipfile
import zlib
from pathlib import Path

from fluxguard.errors import CacheBroken

CACHES = (".npz", ".npy")
"""What a trainer wrote itself and writes again when it is gone; nothing else is ever set aside."""

ASIDE = ".broken"
"""Ends the name of what was set aside."""

_MAGIC = b"\x93NUMPY"
_CHUNK = 1 << 20


def is_cache(path: str) -> bool:
    """Return whether a path names a cache file."""
    return os.path.splitext(path)[1].lower() in CACHES


def look(path: str) -> os.stat_result | None:
    """Return what lies under a name now, without opening it, or None when that cannot be told."""
    try:
        return os.stat(path)
    except OSError:
        return None


def why_no_file(found: os.stat_result | None) -> str | None:
    """Return why this is no regular file, the open of which alone may block for ever, or None.

    None also for what is missing or out of reach: whoever reads it says so in its own words.
    """
    if found is None or stat.S_ISREG(found.st_mode):
        return None
    mode = found.st_mode
    kind = "a folder" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"
    return f"is {kind}, not a regular file"


def why_broken(path: str) -> str | None:
    """Return what is proven to be wrong with a cache file, or None; an error while reading proves nothing by itself.

    Reads all of it.
    """
    suffix = os.path.splitext(path)[1].lower()
    try:
        if suffix == ".npz":
            return _why_archive_broken(path)
        if suffix == ".npy":
            with open(path, "rb") as file:
                return None if file.read(len(_MAGIC)) == _MAGIC else "is not a numpy array"
    except OSError:
        return None
    return None


def _why_archive_broken(path: str) -> str | None:
    if not os.path.getsize(path):
        return "is empty"
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    if member.read(len(_MAGIC)) != _MAGIC:
                        return f"its member {name} is not a numpy array"
                    while member.read(_CHUNK):
                        pass
    except zipfile.BadZipFile as error:
        return f"is truncated or damaged ({error})"
    except (EOFError, zlib.error, struct.error, ValueError, NotImplementedError, RuntimeError) as error:
        return f"is damaged ({type(error).__name__}: {error})"
    return None


def let_go(error: BaseException | None) -> None:
    """Close what a failed reader has left open in the frames of its error: Windows renames no file that is open."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)  # passes over those that still run
        error = error.__context__
    gc.collect()


def set_aside(path: str, reason: str, judged: os.stat_result | None) -> CacheBroken:
    """Rename a broken cache file out of the way and return the error to raise, which says so.

    `judged` is what was found broken: another process may have made it anew meanwhile, or may have set it aside
    first, and then nothing is left to do here.
    """
    if not is_cache(path):
        return CacheBroken(path, reason)
    now = look(path)
    if now is None or judged is None or not os.path.samestat(now, judged):
        return CacheBroken(path, f"{reason}; another process has already taken it away")
    aside = _free_name(path)
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return CacheBroken(path, f"{reason}; another process has already taken it away")
    except OSError as error:
        return CacheBroken(path, f"{reason}; it could not be set aside ({error.strerror}), remove it by hand")
    return CacheBroken(path, f"{reason}; set aside as {Path(aside).name}, to be made anew")


def taken_away(path: str) -> CacheBroken | None:
    """Return the error to raise for a cache file that is missing because it was found broken, or None."""
    if is_cache(path) and not os.path.lexists(path) and os.path.lexists(path + ASIDE):
        return CacheBroken(path, f"was found broken and set aside as {Path(path).name}{ASIDE}, to be made anew")
    return None


def _free_name(path: str) -> str:
    aside = path + ASIDE
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = f"{path}{ASIDE}.{number}"
    return aside
