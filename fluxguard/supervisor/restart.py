"""Where the next attempt starts: the newest state that verifies and that its trainer resumes exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from fluxguard.clock import Clock
from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.launch.remedies import CACHE_ASIDE, Change
from fluxguard.rundir import RunDir
from fluxguard.supervisor import distrust, mending, pace, timeline
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.states import Plan, Sealed, State
from fluxguard.supervisor.trainee import Trainee


@dataclass(frozen=True)
class Restart:
    """Where the next attempt starts."""

    argv: tuple[str, ...] | Refusal
    """Its command, or why no state can be resumed from exactly."""
    state: State | None
    """None from the beginning."""
    notes: tuple[str, ...] = ()
    """Why newer states are not used, in words."""
    by_itself: bool = False
    """Whether the trainer goes on from a state that it finds itself; which one is not known."""

    @property
    def step(self) -> int:
        """True steps it starts with."""
        return self.state.true_step if self.state else 0


def choose(
    run: RunDir,
    trainee: Trainee,
    plan: Plan,
    sealed: Sealed,
    distrusted: Mapping[str, str] = MappingProxyType({}),
    *,
    save_every: float | None = None,
) -> Restart:
    """Return where to start, once everything that no trainer writes any more is sealed.

    `distrusted` are the states that are not to be used though they verify, as `distrust.known` says; `save_every` is
    the seconds between two states that the run's limits want.
    """
    if trainee.foreign:
        return Restart(trainee.argv, None, by_itself=trainee.goes_on)
    plan = replace(plan, step_seconds=pace.step_seconds(timeline.read(run)), save_every=save_every)
    aside = [*sealed.aside, *sealed.unread]
    refused: Refusal | None = None
    for state in states.verified(run, plan, aside, sealed.fresh, lambda folder: distrust.reason(distrusted, folder)):
        argv = trainee.resumed(_start_point(state), plan)
        if not isinstance(argv, Refusal):
            return Restart(argv, state, tuple(aside))
        if refused is None:
            aside.append(f"the state of step {state.true_step} is not used: {argv.reason}")
        refused = refused or argv
    if refused is None and (why := distrust.refusal(distrusted)):
        refused = Refusal(why)
    return Restart(refused or trainee.argv, None, tuple(aside))


def otherwise(trainee: Trainee, argv: tuple[str, ...], remedies: Iterable[str]) -> tuple[str, ...]:
    """Return a command with everything that the run does otherwise by now."""
    for remedy in remedies:
        change = trainee.changed(argv, remedy)
        argv = change.argv if change else argv
    return argv


def offers(trainee: Trainee, taken: Iterable[str], diagnosis: Diagnosis, clock: Clock) -> Iterator[Change]:
    """Yield what another attempt could still do otherwise about a diagnosis, mildest first."""
    argv = otherwise(trainee, trainee.argv, taken)
    for remedy in diagnosis.remedies:
        if remedy == CACHE_ASIDE:
            change = mending.offer(diagnosis.proof, trainee.data, trainee.cwd, clock)
        else:
            change = trainee.changed(argv, remedy)
        if change:
            yield change


def doubt(trainee: Trainee, plan: Plan) -> str:
    """Return why this training could not be resumed from the end of its first epoch, or an empty text.

    Said while it still trains: after a crash it would be too late to choose another way.
    """
    if not plan.steps_per_epoch or plan.steps_per_epoch >= plan.planned_steps:
        return ""
    state = StartPoint(state=Path("any"), true_step=plan.steps_per_epoch, epoch=1, at_epoch_end=True)
    argv = trainee.resumed(state, plan)
    return argv.reason if isinstance(argv, Refusal) else ""


def _start_point(state: State) -> StartPoint:
    return StartPoint(
        state=state.path,
        true_step=state.true_step,
        epoch=state.manifest.epoch,
        at_epoch_end=state.at_epoch_end,
    )
