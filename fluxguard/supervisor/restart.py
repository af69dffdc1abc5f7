"""Where the next attempt starts: the newest state that verifies and that its trainer resumes exactly."""

from __future__ import annotations

from dataclasses import dataclass

from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.rundir import RunDir
from fluxguard.supervisor import states
from fluxguard.supervisor.states import Plan, Sealed, State
from fluxguard.supervisor.trainee import Trainee


@dataclass(frozen=True)
class Restart:
    """Where the next attempt starts."""

    argv: tuple[str, ...] | Refusal
    """Its command, or why no state can be resumed from exactly."""
    state: State | None
    """None from the beginning."""
    set_aside: tuple[str, ...] = ()
    """States that did not verify."""

    @property
    def step(self) -> int:
        """True steps it starts with."""
        return self.state.true_step if self.state else 0


def choose(run: RunDir, trainee: Trainee, plan: Plan, sealed: Sealed) -> Restart:
    """Return where to start, once everything that no trainer writes any more is sealed."""
    aside = list(sealed.aside)
    refused: Refusal | None = None
    for state in states.verified(run, plan, aside):
        argv = trainee.resumed(_start_point(state), plan)
        if not isinstance(argv, Refusal):
            return Restart(argv, state, tuple(aside))
        refused = refused or argv
    return Restart(refused or trainee.argv, None, tuple(aside))


def _start_point(state: State) -> StartPoint:
    return StartPoint(
        state=state.path,
        true_step=state.true_step,
        epoch=state.manifest.epoch,
        at_epoch_end=state.at_epoch_end,
    )
