"""What `accelerate launch` is told of machines and ranks by its settings file, where the command does not say it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fluxguard.launch import ranks
from fluxguard.launch.ranks import ACCELERATE, Ranks

_NAMES = ("num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port")
"""Settings that stand in for an option; how the machines meet is none of them."""
_LARGEST = 1 << 20


def read(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Ranks | None:
    """Return what a command says of its ranks, with what accelerate reads from its settings file.

    A file that cannot be read says nothing here; accelerate says what is wrong with it.
    """
    found = ranks.read(argv, env)
    if found is None or found.launcher != ACCELERATE:
        return found
    named = found.options.get("config_file", "")
    path = cwd / named if named else _usual(env)
    if path is None or (not named and "cpu" in found.options):
        return found
    return found.with_defaults(_settings(path))


def _usual(env: Mapping[str, str]) -> Path | None:
    """Return the file that `accelerate config` writes."""
    cache = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    home = env.get("HF_HOME") or (f"{cache}/huggingface" if cache else "")
    return Path(os.path.expanduser(home)) / "accelerate" / "default_config.yaml" if home else None


def _settings(path: Path) -> dict[str, str]:
    import yaml

    try:
        with path.open("rb") as file:
            values: Any = yaml.safe_load(file.read(_LARGEST))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {name: str(values[name]) for name in _NAMES if isinstance(values.get(name), (int, str))}
