"""Checkouts: which folder is one, which of its files are looked at, and how their bytes become text."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import stat
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from fluxguard.errors import UnknownCheckout
from fluxguard.rundir import write_whole

FLUX = "flux_train_network.py"
ENTRY_POINTS = (FLUX, "train_network.py")
SOURCE_FOLDERS = ("library", "networks")
"""What a training imports. Stand-alone tools are left alone: they may run without the checkout on their path."""

LEFT_BEHIND = frozenset(
    {
        ".fluxguard-originals",
        ".fluxguard-stamp.json",
        ".git",
        ".venv",
        "__pycache__",
        "datasets",
        "env",
        "logs",
        "models",
        "outputs",
        "venv",
        "wandb",
    }
)
"""What a copy does without."""
WEIGHTS = (".safetensors", ".ckpt", ".pt", ".pth", ".npz", ".gguf")

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n]+))", re.MULTILINE
)
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def recognise(folder: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a checkout. Raises UnknownCheckout when `folder` does not look like one."""
    path = Path(folder).resolve()
    if not any((path / name).is_file() for name in ENTRY_POINTS):
        raise UnknownCheckout(folder, " or ".join(ENTRY_POINTS))
    return path


def sources(checkout: Path) -> Iterator[Path]:
    """Yield the Python files that a training may import, in a stable order."""
    yield from sorted(path for path in checkout.glob("*.py") if path.is_file())
    for folder in SOURCE_FOLDERS:
        yield from sorted(
            path for path in (checkout / folder).rglob("*.py") if path.is_file() and "tests" not in path.parts
        )


def on_the_path(sources: Mapping[str, bytes], entry: str = FLUX) -> frozenset[str]:
    """Return which of `sources` (relative name -> content) the training with FLUX may import, by its import lines."""
    found: set[str] = set()
    waiting = [entry]
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


def copied(checkout: Path) -> Iterator[Path]:
    """Yield the files (and links to folders) that belong to a copy, in a stable order."""
    for folder, names, files in os.walk(checkout):
        names[:] = sorted(name for name in names if name not in LEFT_BEHIND)
        for name in (*(name for name in names if Path(folder, name).is_symlink()), *sorted(files)):
            path = Path(folder, name)
            if name not in LEFT_BEHIND and not name.endswith(WEIGHTS) and path.exists():
                yield path


def copy(checkout: Path, target: Path) -> None:
    """Copy a checkout without its history, environments, outputs and weights; a linked folder stays a link."""
    for source in copied(checkout):
        place = target / source.relative_to(checkout)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            place.symlink_to(source.resolve(), target_is_directory=True)
        else:
            place.write_bytes(source.read_bytes())
            place.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IWUSR)


def write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file whole, with the permissions it had (or `mode` when it is new)."""
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    if mode is not None:
        path.chmod(mode)


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()
