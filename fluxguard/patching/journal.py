"""Many files changed as one: all of it or nothing, whatever ends the process and whenever.

First everything that needs space is written into a folder of its own, with a second name (or a copy) of whatever will
be replaced. Then a note is written; from there on a change that was cut off is undone by whoever comes next. Only
renames follow. Last the note is removed, and the change is final.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.patching.checkout import digest
from fluxguard.patching.places import JOURNAL, ORIGINALS, PACKAGE
from fluxguard.rundir import sync_folder

_NOTE = "note.json"
_BEFORE = ".before-fluxguard"
"""Appended to the name of an original whose hardened version somebody has edited before it could be taken back."""
_NEW_FILE_MODE = 0o644
_SYNCS_AT_ONCE = 8
_FOLDERS = (PACKAGE, ORIGINALS)
"""Folders of ours, which are removed when they become empty."""

Content = bytes | Path
"""What a file becomes: these bytes, or what lies at that place now (the very same file, where links exist)."""


@dataclass(frozen=True, kw_only=True)
class _Note:
    """What a change touches, and what was not there before."""

    writes: Sequence[str]
    removes: Sequence[str]
    absent: Sequence[str]
    folders: Sequence[str]
    before: Mapping[str, str]
    """Digest of each file that is touched, where there was one."""
    after: Mapping[str, str]
    """Digest of each file that is written."""

    @property
    def touched(self) -> Sequence[str]:
        return (*self.writes, *self.removes)


def is_cut_off(root: Path) -> bool:
    """Return whether a change of this checkout was cut off (or is going on)."""
    return (root / JOURNAL).exists()


def recover(root: Path) -> None:
    """Undo a change that was cut off; to be called by whoever holds the checkout."""
    folder = root / JOURNAL
    if (folder / _NOTE).exists():
        _undo(root, folder, _Note(**json.loads((folder / _NOTE).read_bytes())))
    _clear(root, folder)


def change(root: Path, writes: Mapping[str, Content], removes: Iterable[str]) -> None:
    """Write and remove files (relative names), all of them or none. Raises OSError; nothing has changed then."""
    folder = root / JOURNAL
    removes = tuple(removes)
    note = _Note(
        writes=tuple(writes),
        removes=tuple(name for name in removes if name not in writes and (root / name).exists()),
        absent=tuple(name for name in writes if not (root / name).exists()),
        folders=tuple(dict.fromkeys(parent for name in writes for parent in _missing(root, name))),
        before={name: digest((root / name).read_bytes()) for name in (*writes, *removes) if (root / name).exists()},
        after={name: digest(new if isinstance(new, bytes) else new.read_bytes()) for name, new in writes.items()},
    )
    try:
        _stage(root, folder, note, writes)
        _execute(root, folder, note)
        (folder / _NOTE).unlink()
        sync_folder(folder)  # else a power cut may bring the note back, and with it half of what was kept
    except BaseException:
        recover(root)
        raise
    with contextlib.suppress(OSError):  # the change is made; the next call clears away what is left of this
        _clear(root, folder)


def _missing(root: Path, name: str) -> list[str]:
    """Return the folders on the way to a file that are not there, outer ones first."""
    parents = (parent for parent in Path(name).parents if parent.name and not (root / parent).is_dir())
    return [parent.as_posix() for parent in parents][::-1]


def _stage(root: Path, folder: Path, note: _Note, writes: Mapping[str, Content]) -> None:
    (folder / "new").mkdir(parents=True)
    (folder / "old").mkdir()
    written = []
    for number, (name, content) in enumerate(writes.items()):
        place = folder / "new" / str(number)
        if isinstance(content, Path):
            _same(content, place)
        else:
            place.write_bytes(content)
            written.append((place, root / name))
    for number, name in enumerate(note.touched):
        if name not in note.absent:
            _same(root / name, folder / "old" / str(number))
    draft = folder / f"{_NOTE}.new"
    draft.write_bytes(json.dumps(note.__dict__).encode())
    _sync([draft, *(place for place, _ in written)])
    for place, target in written:
        _liken(place, target)
    os.replace(draft, folder / _NOTE)
    for place in (folder / "new", folder / "old", folder, root):
        sync_folder(place)


def _liken(place: Path, target: Path) -> None:
    """Give a new file the permissions, and where we may the owner, of the one that it replaces."""
    known = target.stat() if target.exists() else None
    place.chmod(stat.S_IMODE(known.st_mode) if known else _NEW_FILE_MODE)
    if known and hasattr(os, "geteuid") and known.st_uid != os.geteuid():
        with contextlib.suppress(OSError):
            os.chown(place, known.st_uid, known.st_gid)


def _same(source: Path, place: Path) -> None:
    """Give a file a second name, so that its bytes, times and permissions cannot be lost; else copy it."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)
        _sync([place])
        shutil.copystat(source, place)


def _sync(places: Sequence[Path]) -> None:
    """Make files durable, several at once: the file system then writes its own journal once for all of them."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        list(pool.map(_sync_file, places))


def _sync_file(place: Path) -> None:
    with place.open("r+b") as file:
        os.fsync(file.fileno())


def _execute(root: Path, folder: Path, note: _Note) -> None:
    for name in note.folders:
        (root / name).mkdir(exist_ok=True)
    for number, name in enumerate(note.writes):
        _move(folder / "new" / str(number), root / name)
    for name in note.removes:
        (root / name).unlink()
    for parent in dict.fromkeys((root / name).parent for name in note.touched):
        if parent.is_dir():
            sync_folder(parent)


def _undo(root: Path, folder: Path, note: _Note) -> None:
    for number, name in enumerate(note.touched):
        kept = folder / "old" / str(number)
        if _was_changed_since(root, name, note):
            if kept.exists():  # somebody went on in our version of it: both are theirs to compare
                _move(kept, root / f"{name}{_BEFORE}")
        elif name in note.absent:
            (root / name).unlink(missing_ok=True)
        elif kept.exists():
            _move(kept, root / name)
    for name in reversed(note.folders):
        with contextlib.suppress(OSError):  # it is gone, or somebody has put something into it
            (root / name).rmdir()
    (folder / _NOTE).unlink()


def _was_changed_since(root: Path, name: str, note: _Note) -> bool:
    """Return whether a file is neither as it was nor as we would have left it: somebody has edited or replaced it."""
    try:
        found = digest((root / name).read_bytes())
    except FileNotFoundError:
        return False
    return found not in (note.before.get(name), note.after.get(name))


def _clear(root: Path, folder: Path) -> None:
    """Remove those of our folders that hold nothing any more, and last the journal."""
    for top in _FOLDERS:
        for place, _, _ in os.walk(root / top, topdown=False):
            try:
                os.rmdir(place)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
    if folder.exists():
        shutil.rmtree(folder)


def _move(source: Path, target: Path) -> None:
    """Rename, also over a file that Windows takes for read-only."""
    try:
        os.replace(source, target)
    except PermissionError:
        if os.name != "nt" or not target.exists():
            raise
        target.chmod(stat.S_IWRITE)
        os.replace(source, target)
