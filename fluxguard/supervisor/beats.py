"""The folder of heartbeats in memory: what a run that is over leaves there is put away, and so is what no run owns."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
from pathlib import Path

import psutil

from fluxguard import heartbeat
from fluxguard.rundir import BEATS_OF, RunDir, beats_in_memory, write_json, write_whole
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger

_log = logging.getLogger(__name__)

_MOST = 1000
"""Folders that are looked at; what lies in memory is gone with the next start of the machine anyway."""


def put_away(run: RunDir) -> None:
    """Move the last heartbeats of a run that is over into its run directory, where they stay readable.

    Nothing is touched while one of its processes lives, or where the disk does not take them.
    """
    folder = run.beats()
    last = attempts.last(run, ledger.read(run.ledger))
    if not _is_ours(folder) or owner(folder) not in (None, run.root) or (last is not None and last.processes()):
        return
    try:
        run.kept_beats.mkdir(mode=0o700, exist_ok=True)
        for rank in heartbeat.ranks(folder):
            write_whole(heartbeat.path_for(run.kept_beats, rank), heartbeat.path_for(folder, rank).read_bytes())
        write_json(run.run, {"beats": str(run.kept_beats)})
    except OSError as error:
        _log.debug("the heartbeats in %s stay there: %s", folder, error)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers() -> list[Path]:
    """Remove the heartbeats of runs whose folder is gone; return where they were.

    Only folders of this user that say whose they are, and in which no heart beats any more.
    """
    here = beats_in_memory()
    if here is None:
        return []
    removed = []
    with contextlib.suppress(OSError):
        for folder in itertools.islice(here.parent.glob(f"{here.name}*"), _MOST):
            root = owner(folder) if _is_ours(folder) else None
            if root is not None and not os.path.lexists(root) and not _beats(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def owner(folder: Path) -> Path | None:
    """Return the run directory whose heartbeats a folder holds; None where it does not say, as older ones do not."""
    try:
        return Path(os.fsdecode((folder / BEATS_OF).read_bytes()))
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one of this user's in the memory of this machine; links are followed nowhere."""
    here = beats_in_memory()
    if here is None or folder.parent != here.parent or not folder.name.startswith(here.name):
        return False
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _beats(folder: Path) -> bool:
    """Whether a process lives whose heartbeat is in a folder: a disk may have gone away under a training."""
    found = (heartbeat.read(heartbeat.path_for(folder, rank)) for rank in heartbeat.ranks(folder))
    return any(beat is not None and psutil.pid_exists(beat.pid) for beat in found)
