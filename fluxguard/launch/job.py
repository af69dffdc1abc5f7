"""The frozen job: what a run is, so that a later `supervise` can tell whether it is still the same.

Secrets never enter it. Its command is stored masked; whoever starts an attempt reads the real one again from `source`,
the train script, or from the command line, and takes secret variables from its own environment by their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch.flags import Flags, read_json, read_toml
from fluxguard.launch.masking import everywhere, masked
from fluxguard.launch.trainer import script_index

COMMAND_LINE = "command line"
_TEXTS = ("cwd", "interpreter", "checkout", "output_dir")
_NAMED_FILES = ("config_file", "dataset_config")


def planned(flags: Flags) -> dict[str, str]:
    """Return the SHA-256 of what each file says that the flags name; comments and layout do not count.

    Raises InputError when one cannot be read.
    """
    digests = {}
    for name in _NAMED_FILES:
        path = flags.config_file if name == "config_file" else flags.dataset_config
        if path is None:
            continue
        values = read_json(path, f"--{name}") if path.suffix == ".json" else read_toml(path, f"--{name}")
        digests[name] = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    return digests


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run's command and surroundings, safe to write down."""

    argv: tuple[str, ...]
    """The user's command, masked whatever was given; without the flags that fluxguard adds."""
    cwd: Path
    interpreter: Path
    checkout: Path
    output_dir: Path
    output_name: str | None
    planned: dict[str, str] = field(default_factory=dict)
    """What the named files said, as `planned` returns it."""
    env: dict[str, str] = field(default_factory=dict)
    """The variables that may be written down."""
    secrets: tuple[str, ...] = ()
    """The names of the variables that may not."""
    source: str = COMMAND_LINE
    """The train script, or `command line`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", masked(self.argv))
        object.__setattr__(self, "env", everywhere(self.env))

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, as `from_mapping` reads them."""
        values = asdict(self)
        texts = {name: str(values[name]) for name in _TEXTS}
        return {**values, **texts, "argv": list(self.argv), "secrets": list(self.secrets)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "job.json") -> Job:
        """Return the job that `to_mapping` wrote; other keys are left to whoever wrote them.

        Raises InputError naming `source` and the field that is missing or of the wrong kind.
        """
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise InputError(source, "is missing", missing[0])
        name = values["output_name"]
        return cls(
            argv=_texts(values, "argv", source),
            output_name=None if name is None else _text(values, "output_name", source),
            planned=_table(values, "planned", source),
            env=_table(values, "env", source),
            secrets=_texts(values, "secrets", source),
            source=_text(values, "source", source),
            **{field_name: Path(_text(values, field_name, source)) for field_name in _TEXTS},
        )


def _text(values: Mapping[str, Any], name: str, source: str) -> str:
    if not isinstance(values[name], str):
        raise InputError(source, f"must be text, not {values[name]!r}", name)
    return str(values[name])


def _texts(values: Mapping[str, Any], name: str, source: str) -> tuple[str, ...]:
    found = values[name]
    if not isinstance(found, (list, tuple)) or not all(isinstance(word, str) for word in found):
        raise InputError(source, "must be a list of texts", name)
    return tuple(found)


def _table(values: Mapping[str, Any], name: str, source: str) -> dict[str, str]:
    found = values[name]
    if not isinstance(found, Mapping) or not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise InputError(source, "must be a table of texts", name)
    return dict(found)


def changed(old: Job, new: Job) -> str | None:
    """Return what makes `new` another job than `old`, naming the first field that differs, or None.

    The environment, the secrets and where the command was read from do not count: another terminal or another GPU is no
    other job. Neither does the order of flags, nor one that a later one overrides, nor the way to the same folder.
    """
    for name in ("output_dir", "output_name", "checkout", "interpreter", "cwd"):
        before, after = getattr(old, name), getattr(new, name)
        same_folder = name != "interpreter" and isinstance(after, Path) and before.resolve() == after.resolve()
        if before != after and not same_folder:
            return f"{name}: was {before}, is {after}"
    for before_words, after_words in zip(_parts(old), _parts(new), strict=True):
        if difference := _difference(before_words, after_words):
            return f"argv: {difference}"
    for name in sorted(set(old.planned) | set(new.planned)):
        if old.planned.get(name) != new.planned.get(name):
            return f"{name}: the file says something else than when the run began"
    return None


def _parts(job: Job) -> tuple[dict[str, tuple[str, ...]], ...]:
    """Return what the launcher is told, the script, and what the trainer is told."""
    index = script_index(job.argv) or 0
    return tuple(_by_flag(part) for part in (job.argv[:index], job.argv[index : index + 1], job.argv[index + 1 :]))


def _by_flag(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each flag; words before the first flag are the command's own."""
    said: dict[str, tuple[str, ...]] = {}
    name = "the command"
    for word in words:
        if word.startswith("--") and " " not in word.partition("=")[0]:
            name, equals, value = word.partition("=")
            said[name] = (value,) if equals else ()
        else:
            said[name] = (*said.get(name, ()), word)
    return said


def _difference(old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]) -> str | None:
    for name in (*old, *(name for name in new if name not in old)):
        if name not in new:
            return f"{name} was there, is gone"
        if name not in old:
            return f"{name} is new"
        if old[name] != new[name]:
            return f"{name} was {' '.join(old[name]) or 'there without a value'}, is {' '.join(new[name]) or 'empty'}"
    return None
