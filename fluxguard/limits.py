"""Every duration fluxguard promises, once, with the reason for it; `current` and `use` are those of this process.

Seconds as float; `None` means no limit; 0 is refused, because it reads as "off" and acts as "at once".
Unhardened trainers beat less often, so the supervisor doubles its own limits for them (`Limits.doubled`).
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from fluxguard.errors import LimitsError
from fluxguard.rundir import LIMITS_VARIABLE

logger = logging.getLogger(__name__)

PHASES = (
    "load",
    "tokenizers",
    "accelerator",
    "cast",
    "latent cache",
    "text cache",
    "prepare",
    "resume",
    "hash",
    "trackers",
    "first step",
    "step",
    "validation",
    "sampling",
    "saving",
    "on main",
    "upload",
    "ending",
)
"""The phases of a training, in the order in which they are first met."""


def _seconds(name: str, value: object, source: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LimitsError(source, f"must be a number of seconds or null, not {value!r}", name)
    if not value > 0:
        raise LimitsError(source, "must be more than 0 seconds (null means no limit)", name)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if seconds == math.inf:
        raise LimitsError(source, "must be finite (null means no limit)", name)
    return seconds


BATCH_CEILING = 10.0
"""A batch that takes so many times its limit is stuck, whatever its worker reads: it may try the same for ever."""


NOTIFY_EVERY = 600.0
"""Restarts are told to people at most this often; those in between are summed up: a run in trouble is no alarm bell."""

NOTIFY_SEND = 60.0
"""One message may take so long, tries and retries together; then the process that sends it ends itself."""

NOTIFY_LAST = 20.0
"""How long the end of a run waits for its last message: two tries at a service that does not answer."""


ELSEWHERE = 300.0
"""A supervisor on another machine that gave no sign for so long has ended; a living one gives one every half minute."""


@dataclass(frozen=True, kw_only=True)
class WaitLimits:
    """How long the guard, inside the trainer, lets one wait last."""

    block_swap: float | None = 30.0
    """Moving one block takes well under a second on any bus; 30 s is a dead driver or a stuck copy."""

    batch: float | None = 60.0
    """A batch is one cached file read; a minute without one is a stuck worker, not a slow disk."""

    first_batch: float | None = 300.0
    """The first batch waits for the workers to start, which under spawn import torch from a cold disk."""

    read: float | None = 30.0
    """Counted from the last new byte, so that a slow disk is never a broken one."""

    barrier: float | None = 300.0
    """Below the 600 s after which NCCL ends the process without a word about who is missing."""

    setup: float | None = 30.0
    """All ranks start within seconds of each other; one that is half a minute late to the roll call was given a wrong
    address, or was never started, unless its process is seen: that one may still read torch from a cold disk."""

    command: float | None = 60.0
    """Another program that is asked for a word, such as git for its revision; on a mount that is gone none answers."""

    fid: float | None = 300.0
    """The distance of 50 000 features of 2048 numbers, in a process of its own, takes a minute of one core."""

    sample: float | None = 1800.0
    """One sample image: minutes where blocks are swapped; one that takes half an hour costs more than it shows."""

    upload: float | None = 1800.0
    """One upload to the hub, after the local file is written: gigabytes over a slow line, and the training waits."""

    ending: float | None = 540.0
    """Trackers finish after the last save: just below the patience of their phase, so that it is not ended as stuck."""


@dataclass(frozen=True, kw_only=True)
class PhaseLimit:
    """How long the supervisor waits in one phase."""

    patience: float | None
    """No beat, no progress, no CPU time and no I/O for this long: nothing in there is alive."""

    ceiling: float | None
    """No beat and no progress for this long, whatever else moves: a hang at 100 % is as common as at 0 %."""


def _phases() -> dict[str, PhaseLimit]:
    minute = 60.0
    slow_start = PhaseLimit(patience=10 * minute, ceiling=60 * minute)
    return {
        "load": slow_start,  # 34 GB from a network disk
        "tokenizers": slow_start,  # the hub is asked at every start, and retried when it does not answer
        "accelerator": slow_start,  # all ranks find each other, wandb logs in
        "cast": slow_start,  # 12 G weights to fp8 on one core, read from the disk meanwhile
        "prepare": slow_start,  # LoRA modules, optimizer, models to the GPU, block swap
        "resume": slow_start,  # a state from a network share, or from the hub
        "trackers": slow_start,  # wandb asks its server, with retries of its own
        "hash": slow_start,  # SHA-256 of the whole base model, silent upstream
        "text cache": slow_start,  # T5-XXL on a CPU
        "latent cache": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # per image
        "first step": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # torch.compile, worker start
        "step": PhaseLimit(patience=5 * minute, ceiling=5 * minute),
        "validation": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # per batch
        "sampling": PhaseLimit(patience=15 * minute, ceiling=60 * minute),
        "saving": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # a state on a network share
        "on main": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # rank 0 alone: it validates, saves, uploads
        "upload": PhaseLimit(patience=40 * minute, ceiling=60 * minute),  # the guard itself gives up before
        "ending": PhaseLimit(patience=10 * minute, ceiling=30 * minute),  # tracker finish and last uploads
    }


@dataclass(frozen=True, kw_only=True)
class WatchLimits:
    """How the supervisor itself behaves."""

    look: float = 0.25
    """Between two looks at the files; a quarter of the second within which a crash is to be seen."""

    overdue: float = 3.0
    """An open wait this far past its own limit was not ended by the guard: a held GIL or a stopped process."""

    late: float = 5.0
    """A look that comes this much too late means that the machine slept: that time counts for no limit."""

    step_factor: float = 10.0
    """The ceiling of a step grows to this many times the slowest step seen, and a limit that nobody chose to this many
    times the longest of its kind that this run has completed."""

    settle: float = 2.0
    """Between two samples of the stacks before a kill: two equal ones prove that nothing moves."""

    evidence: float = 10.0
    """The longest that stacks and figures may take before the kill goes on without them."""

    grace: float = 10.0
    """Between SIGTERM and SIGKILL: long enough for a process that can still end to end."""

    reap: float = 20.0
    """After SIGKILL only a process in an uninterruptible kernel wait lives on; it is reported, not waited for."""

    memory: float = 50.0
    """How long the next attempt waits for the GPU memory of the last one to be returned."""

    backoff: float = 15.0
    """Doubled with each restart that brought no progress; the first restart after progress is immediate."""

    backoff_ceiling: float = 900.0
    """A cloud disk or a driver that needs more than a quarter of an hour needs a person."""


@dataclass(frozen=True, kw_only=True)
class SaveLimits:
    """How often fluxguard itself saves a state of a supervised training, besides those that the user asked for."""

    every: float | None = 600.0
    """Ten minutes are what a crash may cost. Where that would cost more than its share, the longer pause wins."""

    share: float | None = 0.01
    """Of the time, for saving: a save that takes 6 s comes every 10 minutes, one that takes 10 s every 17."""

    allowance: float | None = 5.0
    """Seconds of saving in all that are free, so that a short training has a state at each epoch, too."""


_BUDGETS = ("max_restarts", "max_kills", "max_heals")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All limits of one run."""

    wait: WaitLimits = field(default_factory=WaitLimits)
    phase: Mapping[str, PhaseLimit] = field(default_factory=_phases)
    watch: WatchLimits = field(default_factory=WatchLimits)
    save: SaveLimits = field(default_factory=SaveLimits)
    max_restarts: int = 5
    """Restarts in a row that brought no progress before the run is stopped; progress refills the budget."""

    max_kills: int = 10
    """The same for ends that came from outside (a kill by the system or a person), which are not the run's fault."""

    max_bad_losses: int | None = 20
    """Losses in a row that are no numbers before the training is stopped: in fp16 a few are normal, 20 never heal."""

    max_heals: int = 3
    """Heals in place of one process; after them a passed limit ends it: what breaks a fourth time stays broken."""

    strict: bool = False
    """Whether to end the process instead of healing it where the training would not stay identical bit for bit."""

    def __post_init__(self) -> None:
        for name, limit in self.phase.items():
            if limit.patience is not None and limit.ceiling is not None and limit.ceiling < limit.patience:
                raise LimitsError("limits", "must not be less than the patience of the phase", f"phase.{name}.ceiling")
        for name in _BUDGETS:
            if getattr(self, name) < 0:
                raise LimitsError("limits", "must be 0 or more", name)
        if self.max_bad_losses is not None and self.max_bad_losses < 1:
            raise LimitsError("limits", "must be 1 or more (null means no limit)", "max_bad_losses")

    def for_phase(self, phase: str) -> PhaseLimit:
        """Return the limit of `phase`; an unknown one gets the most patient."""
        return self.phase.get(phase) or self.phase["load"]

    def doubled(self) -> Limits:
        """Return the limits for a trainer that is not hardened: it shows less of what it does."""

        def twice(value: float | None) -> float | None:
            return None if value is None else 2 * value

        phases = {
            name: PhaseLimit(patience=twice(limit.patience), ceiling=twice(limit.ceiling))
            for name, limit in self.phase.items()
        }
        return replace(self, phase=phases)

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, as `from_mapping` reads them."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "limits", defaults: Limits | None = None) -> Limits:
        """Build limits from plain values over `defaults` (those of the class when none are given).

        Raises LimitsError naming `source` and the field: unknown, not a number, 0 or less, out of order.
        """
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise LimitsError(source, "is not a limit", sorted(unknown)[0])
        defaults = defaults or cls()
        counts = {name: _count(name, values.get(name, getattr(defaults, name)), source) for name in _BUDGETS}
        losses = values.get("max_bad_losses", defaults.max_bad_losses)
        phases = dict(defaults.phase)
        for name, given in _table("phase", values.get("phase", {}), source).items():
            if name not in phases:
                raise LimitsError(source, f"is not a phase (phases: {', '.join(PHASES)})", f"phase.{name}")
            phases[name] = _section(phases[name], _table(f"phase.{name}", given, source), f"phase.{name}", source)
        try:
            return cls(
                wait=_section(defaults.wait, _table("wait", values.get("wait", {}), source), "wait", source),
                phase=phases,
                watch=_section(defaults.watch, _table("watch", values.get("watch", {}), source), "watch", source),
                save=_section(defaults.save, _table("save", values.get("save", {}), source), "save", source),
                max_bad_losses=None if losses is None else _count("max_bad_losses", losses, source),
                strict=_flag("strict", values.get("strict", defaults.strict), source),
                **counts,
            )
        except LimitsError as error:
            raise LimitsError(source, error.reason, error.field) from None


def _count(name: str, value: object, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LimitsError(source, f"must be a whole number, not {value!r}", name)
    return value


def _flag(name: str, value: object, source: str) -> bool:
    if not isinstance(value, bool):
        raise LimitsError(source, f"must be true or false, not {value!r}", name)
    return value


def _table(name: str, value: object, source: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise LimitsError(source, f"must be a table, not {value!r}", name)
    return value


def _section(defaults: Any, given: Mapping[str, Any], name: str, source: str) -> Any:
    known = {f.name for f in fields(defaults)}
    chosen: dict[str, float | None] = {}
    for key, value in given.items():
        at = f"{name}.{key}"
        if key not in known:
            raise LimitsError(source, f"is not a limit (limits here: {', '.join(sorted(known))})", at)
        chosen[key] = _seconds(at, value, source)
        if value is None and isinstance(defaults, WatchLimits):
            raise LimitsError(source, "must be a number of seconds", at)
    return replace(defaults, **chosen)


def read(path: str | os.PathLike[str], defaults: Limits | None = None) -> Limits:
    """Read a limits.json, as the supervisor writes it and the guard finds it through FLUXGUARD_LIMITS.

    Raises OSError when it cannot be read and LimitsError when it says something that is not a limit.
    """
    with open(path, "rb") as file:
        try:
            values = json.loads(file.read())
        except (ValueError, RecursionError) as error:  # no JSON, no text, a number or a nesting beyond all measure
            raise LimitsError(path, f"is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise LimitsError(path, "must hold a table")
    values.pop("version", None)
    return Limits.from_mapping(values, str(path), defaults)


class _Process:
    limits: Limits | None = None


_process = _Process()


def current() -> Limits:
    """Return the limits of this process: what `use` has set over the file in FLUXGUARD_LIMITS over the defaults.

    The file is read at the first call, and costs nothing after it. One that cannot be used is named in a warning and
    the defaults hold, because limits must not keep a training from starting. Never raises.
    """
    known = _process.limits
    if known is None:
        known = _process.limits = _found()
    return known


def _found() -> Limits:
    path = os.environ.get(LIMITS_VARIABLE)
    if path:
        try:
            return read(path)
        except (OSError, LimitsError) as error:
            logger.warning("the limits cannot be used, the defaults hold: %s", error)
    return Limits()


class use:
    """Set how long waits of this process may last, by the names of `WaitLimits`: `limits.use(batch=120, read=None)`.

    In seconds; None means no limit. It holds from the call on, in every thread and in processes forked from then on
    (spawned ones know the file in FLUXGUARD_LIMITS only), until another call changes it. As a block, `with
    limits.use(batch=5):`, the limits it names are what they were before when the block ends. Waits that are already
    open keep theirs.

    Raises LimitsError, and changes nothing, for an unknown name, what is no number of seconds, and 0 or less.
    """

    def __init__(self, **waits: float | None) -> None:
        self._waits = waits
        self._before = [self._set(waits)]
        self._fresh = True

    def __enter__(self) -> use:
        if not self._fresh:  # entered for a second time: the call itself has set them for the first
            self._before.append(self._set(self._waits))
        self._fresh = False
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self._before.pop())

    def _set(self, waits: Mapping[str, float | None]) -> dict[str, float | None]:
        known = current()
        chosen = _section(known.wait, waits, "wait", "limits.use")
        _process.limits = replace(known, wait=chosen)
        return {name: getattr(known.wait, name) for name in waits}
