"""Checkouts: which folder is one, which of its files are looked at, and how their bytes become text."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import shutil
import stat
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fluxguard.errors import UnknownCheckout
from fluxguard.patching.places import FLUXGYM, JOURNAL, LOCK, ORIGINALS, OURS, SD_SCRIPTS, STAMP

FLUX = "flux_train_network.py"
ENTRY_POINTS = (FLUX, "train_network.py")
PAGE = "app.py"
_PAGE_IMPORTS = (b"gradio_logsview", b"LogsViewRunner")

LEFT_BEHIND = frozenset({".venv", "datasets", "env", "logs", "models", "outputs", "venv", "wandb"})
"""What a copy does without, at the root of a checkout."""
NEVER = frozenset({".git", "__pycache__", "node_modules", "site-packages", JOURNAL, LOCK, ORIGINALS, STAMP})
"""What a copy does without wherever it lies."""
CODE = frozenset({".cfg", ".ini", ".json", ".model", ".py", ".pyi", ".toml", ".yaml", ".yml"})
"""What decides how a checkout trains."""
_COPIED = CODE | {"", ".bat", ".dll", ".md", ".pyd", ".sh", ".so", ".txt"}
"""What a copy takes along; whatever else lies in a checkout is data: pictures, weights, states, logs."""
_LARGEST = 64 << 20
"""Bytes; the largest file that trainers bring is the vocabulary of a tokenizer."""

_DRAWS = re.compile(r"(\w+_)?(gen_img|minimal_inference)(_\w+)?\.py")
"""Scripts at the root that draw pictures with a finished model: large, and nothing of a training."""

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n]+))", re.MULTILINE
)
_NAME = re.compile(r"[A-Za-z_][\w.]*")

_NAMED_BY_FLAGS = ("networks/lora_flux.py",)
"""What is imported by its name in `--network_module`, which no import line says."""


@dataclass(frozen=True)
class Checkout:
    """A folder that rules belong to."""

    root: Path
    kind: str
    """`sd-scripts` or `fluxgym`."""

    def on_the_path(self, sources: Mapping[str, bytes]) -> frozenset[str]:
        """Return the sources (relative name -> content) in which a required rule must find its sites."""
        if self.kind == FLUXGYM:
            return frozenset({PAGE} & set(sources))
        return on_the_path(sources)


def recognise(folder: str | os.PathLike[str]) -> Checkout:
    """Return what a folder is, with its absolute path. Raises UnknownCheckout when it is nothing that we know."""
    path = Path(folder).resolve()
    if any((path / name).is_file() for name in ENTRY_POINTS):
        return Checkout(path, SD_SCRIPTS)
    if is_fluxgym(path):
        return Checkout(path, FLUXGYM)
    raise UnknownCheckout(folder, " or ".join(ENTRY_POINTS))


def is_fluxgym(folder: Path) -> bool:
    """Return whether a folder is the root of a FluxGym: its page shows the log of a command."""
    try:
        page = (folder / PAGE).read_bytes()
    except OSError:
        return False
    return all(name in page for name in _PAGE_IMPORTS)


def within(folder: str | os.PathLike[str]) -> tuple[Checkout, ...]:
    """Return the checkouts that a user means by a folder: of a FluxGym, first its sd-scripts and then the page itself.

    Raises UnknownCheckout.
    """
    found = recognise(folder)
    return (recognise(found.root / SD_SCRIPTS), found) if found.kind == FLUXGYM else (found,)


def sources(checkout: Checkout) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of the Python files that rules are for, in a stable order, and why others are passed over."""
    names: list[str] = []
    passed: dict[str, str] = {}
    for name, entry in _walk(checkout.root, deep=checkout.kind == SD_SCRIPTS):
        if not entry.is_symlink():
            if name.endswith(".py") and not _DRAWS.fullmatch(name):
                names.append(name)
        elif name.endswith(".py") or (entry.is_dir() and _holds_python(entry.path)):
            target = Path(entry.path).resolve()
            if not target.is_relative_to(checkout.root) and target.exists():
                passed[name] = f"is a link to {target}; only a copy (--to) can be hardened there"
    return tuple(sorted(names, key=lambda name: ("/" in name, name))), passed


def _walk(root: Path, *, deep: bool) -> Iterator[tuple[str, os.DirEntry[str]]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}".lstrip("/")
                if name in OURS or entry.name in NEVER:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield name, entry
                elif deep and not _is_passed_over(entry, at_root=not folder):
                    waiting.append(name)


def _is_passed_over(entry: os.DirEntry[str], *, at_root: bool) -> bool:
    """Return whether a folder holds no sources of the checkout: tests, hidden folders, environments, outputs."""
    if entry.name in ("test", "tests") or entry.name.startswith(".") or (at_root and entry.name in LEFT_BEHIND):
        return True
    return os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))


def _holds_python(folder: str) -> bool:
    try:
        return any(name.endswith(".py") for name in os.listdir(folder))
    except OSError:
        return False


def on_the_path(sources: Mapping[str, bytes]) -> frozenset[str]:
    """Return which of `sources` (relative name -> content) the training of a FLUX LoRA may import."""
    found: set[str] = set()
    waiting = [FLUX, *_NAMED_BY_FLAGS] if FLUX in sources else []
    while waiting:
        name = waiting.pop()
        if name in found or name not in sources:
            continue
        found.add(name)
        for module in _imported(sources[name].decode("utf-8", "replace")):
            waiting += (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")
    return frozenset(found)


def _imported(text: str) -> Iterator[str]:
    """Yield what may be a module in the import lines of a text; a name that is none is found nowhere."""
    for package, names, modules in _IMPORT.findall(text):
        if package:
            inside = package.strip(".") if not package.startswith(".") else f"library.{package.strip('.')}".strip(".")
            yield inside
            yield from (f"{inside}.{name}" for name in _NAME.findall(names))
        yield from _NAME.findall(modules)


def decode(data: bytes) -> tuple[str, str, bytes]:
    """Return text, encoding and byte order mark of a Python source, every line break kept.

    Raises SyntaxError or UnicodeDecodeError when the bytes are not what they declare to be.
    """
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(mark) :]
    try:
        return body.decode("utf-8"), "utf-8", mark
    except UnicodeDecodeError:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return body.decode(encoding), encoding, mark


def copied(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files (and of the links to folders) that belong to a copy, in a stable order.

    A linked folder stays a link, unless it holds Python from elsewhere: hardening the copy must not reach through it.
    """
    for folder, names, files in os.walk(root):
        here = "" if Path(folder) == root else Path(folder).relative_to(root).as_posix()
        names[:] = sorted(name for name in names if name not in NEVER and (here or name not in LEFT_BEHIND))
        for name in names:
            if (path := Path(folder, name)).is_symlink() and path.exists():
                outside = not path.resolve().is_relative_to(root)
                inner = copied(path.resolve()) if outside and _holds_python(str(path)) else [("", path)]
                yield from ((f"{here}/{name}/{below}".strip("/"), found) for below, found in inner)
        for name in sorted(files):
            path = Path(folder, name)
            if name not in NEVER and (here or name not in LEFT_BEHIND) and _is_copied(path):
                yield f"{here}/{name}".lstrip("/"), path


def _is_copied(path: Path) -> bool:
    if path.suffix.lower() not in _COPIED:
        return False
    try:
        known = path.stat()
    except OSError:  # a link to nothing
        return False
    return stat.S_ISREG(known.st_mode) and known.st_size <= _LARGEST


def copy(root: Path, target: Path) -> None:
    """Copy the code of a checkout and what it needs, without history, environments and data."""
    for name, source in copied(root):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            place.symlink_to(source.resolve(), target_is_directory=True)
        else:
            shutil.copyfile(source, place)
            place.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IWUSR)


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()
