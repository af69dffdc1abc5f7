"""What is to be trained, as the supervisor needs to know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.launch.ranks import Ranks
from fluxguard.launch.remedies import Change
from fluxguard.supervisor.checkpoints.states import Plan


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
    weights: Path | None
    """Where the final weights will lie; None for a foreign trainer of which nobody said."""
    hardened: bool
    accumulation: int
    own_cadence: bool
    """Whether fluxguard asked for the states, and may therefore delete old ones."""
    changed: Callable[[tuple[str, ...], str], Change | None] = lambda _argv, _remedy: None
    """Returns the command after one more rung of a remedy, or None when nothing is left of it to do."""
    data: tuple[Path, ...] = ()
    """The folders of the images and their caches."""
    ranks: Ranks | None = None
    """What its command says of several ranks; None where it names no launcher that we know."""
    foreign: bool = False
    """Whether it is no trainer that fluxguard knows: it has no states, and each attempt starts from the beginning."""

    @property
    def elastic(self) -> bool:
        """Whether an agent starts its ranks again by itself: of a trainer that we know it would start the beginning."""
        return self.foreign and self.ranks is not None and self.ranks.elastic

    @property
    def goes_on(self) -> bool:
        """Whether it goes on by itself from a state that we do not know: what starts ranks again relies on that."""
        return self.foreign and (self.elastic or self.several)

    @property
    def several(self) -> bool:
        """Whether it trains on several machines."""
        return self.ranks is not None and self.ranks.several
