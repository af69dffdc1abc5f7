"""The secrets of a run, as far as they can still be found: what reads its output later must hide them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch import masking, trainsh
from fluxguard.launch.job import COMMAND_LINE


def environment(job: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with what the train script of a job exports, as the trainer's was made."""
    script = _script(job, env)
    return {**env, **(script.env if script else {})}


def secrets(job: Mapping[str, Any], env: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values in our environment, the train script, and the settings files of a job (its job.json)."""
    script = _script(job, env)
    found = masking.secrets_of(script.argv if script else (), environment(job, env))
    return found.union(*(masking.secrets_in(path) for path in settings(job).values()))


def unknown(job: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """Return the names of the secret variables that the trainer had and that are not set here."""
    names, here = job.get("secrets"), environment(job, env)
    return [str(name) for name in names if name not in here] if isinstance(names, list) else []


def settings(job: Mapping[str, Any]) -> dict[str, Path]:
    """Return the settings files that a job's command names, by the flag and the kind: `config_file.toml`."""
    argv, cwd = job.get("argv"), Path(str(job.get("cwd", ".")))
    found = {}
    for flag, following in zip(argv, [*argv[1:], ""], strict=True) if isinstance(argv, list) else ():
        name, equals, value = str(flag).partition("=")
        if name in ("--config_file", "--dataset_config"):
            path = cwd / (value if equals else str(following))
            if name == "--config_file" and path.suffix != ".toml":
                path = path.with_name(f"{path.name}.toml")  # as upstream does
            found[f"{name.removeprefix('--')}{path.suffix}"] = path
    return found


def script(job: Mapping[str, Any]) -> Path | None:
    """Return the train script of a job, or None when it was a command line."""
    source = job.get("source")
    return Path(source) if isinstance(source, str) and source != COMMAND_LINE else None


def _script(job: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    path = script(job)
    if path is None:
        return None
    try:
        return trainsh.parse(path, env)
    except InputError:
        return None
