"""What is to be trained, as the supervisor needs to know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.supervisor.states import Plan


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What is to be trained: everything that the supervisor has to know of the command."""

    argv: tuple[str, ...]
    """The command as it is run from the beginning, secrets and all."""
    resumed: Callable[[StartPoint, Plan], tuple[str, ...] | Refusal]
    """Returns the command that goes on from a state, or why there is none."""
    masked: Callable[[tuple[str, ...]], tuple[str, ...]]
    secrets: frozenset[str]
    """Values that may appear in the trainer's output and in nothing that is written about it."""
    cwd: Path
    env: Mapping[str, str]
    weights: Path
    """Where the final weights will lie."""
    hardened: bool
    accumulation: int
    own_cadence: bool
    """Whether fluxguard asked for the states, and may therefore delete old ones."""
