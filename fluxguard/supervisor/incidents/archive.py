"""What explains a run, as one archive to send: everything in it is text, masked, of bounded size, in a fixed order."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError, StateUnusable
from fluxguard.launch import masking
from fluxguard.manifest import read as read_manifest
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import ledger
from fluxguard.supervisor.incidents import incident, issue, known, page, versions
from fluxguard.supervisor.incidents.texts import plain

_STAMP = ".fluxguard-stamp.json"
_MOST_INCIDENTS = 20
_LARGEST = 2 << 20
"""Bytes of one file; of a longer one its end is packed."""
_LARGEST_ALL = 20 << 20
"""Bytes of all files before they are compressed: what an issue takes."""
_LOG = 256 << 10
_EPOCH = (1980, 1, 1, 0, 0, 0)
_EMAIL = re.compile(r"(?<![\w.+-])(?!git@)[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_HOMES = (
    re.compile(r"((?:/home|/Users|/run/media|/media)/+)([^\\/\s'\":;,]+)"),
    re.compile(r"(?i)(\b[a-z]:[\\/]+users[\\/]+)(?:[^\\/'\":;,\n]+(?=[\\/])|[^\\/\s'\":;,]+)"),
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An archive, and what is in it."""

    data: bytes
    sizes: Mapping[str, int]
    """Bytes of each file before compression, in their order."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What should have been in it, and why it is not."""


def pack(run: RunDir, env: Mapping[str, str]) -> Packed:
    """Return the archive of a run. `env` tells secrets by their names, as the trainer's own environment did.

    Raises InputError when there is no run.
    """
    job = read_json(run.job)
    if job is None and not ledger.read(run.ledger):
        raise InputError(run.output_dir, "holds no run of fluxguard")
    job = job or {}
    clean = Cleaner(known.secrets(job, env), env.get("HOME") or env.get("USERPROFILE") or "")
    left_out: dict[str, str] = {}
    texts: dict[str, str] = {}
    total = 0
    for name, make in _parts(run, job, env):
        try:
            text = clean(make())
        except _Missing as error:
            left_out[name] = str(error)
            continue
        if total + len(text) > _LARGEST_ALL:
            left_out[name] = "the archive is full"
            continue
        total += len(text)
        texts[name] = text
    texts = {"README.txt": issue.readme(texts, left_out), "issue.md": clean(issue.text(texts)), **texts}
    return Packed(
        data=_zipped(texts), sizes={name: len(text.encode()) for name, text in texts.items()}, left_out=left_out
    )


class _Missing(Exception):
    """Raised for a part that there is none of, with why in words."""


@dataclass(frozen=True)
class Cleaner:
    """Takes secrets, e-mail addresses and names of users out of a text."""

    secrets: frozenset[str]
    home: str

    def __call__(self, text: str) -> str:
        """Return the text without them; the home folder is `~`."""
        text = masking.mask(plain(text), self.secrets)
        home = self.home.rstrip("/\\")
        if len(home) > 2:
            for spelt in (home, home.replace("\\", "\\\\")):
                text = re.sub(re.escape(spelt) + r"(?![\w.-])", "~", text)
        for pattern in _HOMES:
            text = pattern.sub(r"\g<1>***", text)
        return _EMAIL.sub("***@***", text)


_Part = tuple[str, Callable[[], str]]


def _parts(run: RunDir, job: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[_Part]:
    """Yield name and maker of every file, the most telling first: what does not fit any more is left out."""
    yield "versions.json", lambda: _json(_versions(run, job))
    yield "job.json", lambda: _read(run.job)
    for path in (run.limits, run.learned):
        if path.exists():
            yield path.name, partial(_read, path)
    yield "ledger.jsonl", lambda: _read(run.ledger)
    yield "rules.json", lambda: _json(_rules(job))
    yield "states.json", lambda: _json(_states(run))
    yield "log-tail.txt", lambda: _log(run, job, env)
    if script := known.script(job):
        yield f"command/train{script.suffix}", partial(_read, script)
    for name, path in known.settings(job).items():
        yield f"command/{name}", partial(_read, path)
    for number in reversed(incident.numbers(run)[-_MOST_INCIDENTS:]):
        yield from _incident(incident.folder_for(run, number))


def _incident(folder: Path) -> Iterator[_Part]:
    found = incident.read(folder / incident.REPORT)
    place = f"incidents/{folder.name}"
    yield f"{place}/{incident.REPORT}", lambda: _read(folder / incident.REPORT)
    yield f"{place}/{incident.MARKDOWN}", lambda: _read(folder / incident.MARKDOWN)
    if found is None:
        return
    yield f"{place}/report.html", lambda: page.render(found, page.beside(folder, found))
    for name in page.beside(folder, found):
        yield f"{place}/{name}", partial(_read, folder / name)
    yield f"{place}/{incident.LAST_LINES}", lambda: _read(folder / incident.LAST_LINES)


def _read(path: Path, largest: int = _LARGEST) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - largest))
            text = file.read(largest).decode("utf-8", "replace")
    except OSError as error:
        raise _Missing(error.strerror or type(error).__name__) from None
    return text if size <= largest else f"[the first {size - largest} bytes are left out]\n" + text.partition("\n")[2]


def _json(values: Any) -> str:
    return json.dumps(values, indent=2) + "\n"


def _log(run: RunDir, job: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the end of the trainer's own output, which nobody has masked so far.

    Where a secret was in an environment that is not ours, its value is not known here: then only the lines beside the
    incidents are packed, masked by the supervisor that knew it.
    """
    unknown = known.unknown(job, env)
    if unknown:
        names = ", ".join(unknown)
        raise _Missing(f"{names} not set here, so it could not be found in it; the incidents hold the last lines")
    return _read(run.log, _LOG)


def _versions(run: RunDir, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions; the trainer's Python is the one that the newest attempt was started with."""
    begun = ledger.newest(ledger.read(run.ledger), "attempt")
    argv = begun.values.get("argv") if begun else None
    started = str(argv[0]) if isinstance(argv, list) and argv else ""
    python = started if Path(started).is_absolute() else job.get("interpreter")
    trainer = versions.of_trainer(Path(python)) if isinstance(python, str) else {}
    return {"trainer": trainer, "machine": versions.of_machine()}


def _rules(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return which rules are in force, from the stamp that hardening left, read as data."""
    where = job.get("trained_in")
    stamp = read_json(Path(where) / _STAMP) if isinstance(where, str) else None
    if stamp is None:
        return {"hardened": bool(job.get("hardened")), "rules": "no stamp of hardening was found"}
    return {"hardened": True, **{name: stamp.get(name) for name in ("digest", "choice", "whole", "report")}}


def _states(run: RunDir) -> list[dict[str, Any]]:
    """Return what each sealed state says of itself; whether it verifies is not asked: that reads all of it."""
    found = []
    for folder in (run.states, run.aside):
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            entry: dict[str, Any] = {"name": path.name, "aside": folder == run.aside}
            try:
                manifest = read_manifest(path)
            except StateUnusable as error:
                found.append({**entry, "unusable": str(error.reason)})
                continue
            files = {name: size for name, (size, _) in manifest.files.items()}
            entry |= {name: getattr(manifest, name) for name in ("true_step", "epoch", "batch", "world_size")}
            found.append({**entry, "files": files})
    return found


def _zipped(texts: Mapping[str, str]) -> bytes:
    """Return a zip that is the same for the same texts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            archive.writestr(entry, text.encode())
    return buffer.getvalue()
