"""States besides those that the user asked for: often enough to lose little, seldom enough to cost little.

Only under a supervisor, which goes on from them. They are saved where the trainer saves at steps, so that a training
goes on from them exactly as from its own; with several processes the first one saves, as it does at the end of an
epoch, and the others wait for it where they meet next.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxguard import limits
from fluxguard.clock import Clock, SystemClock
from fluxguard.guard import pulse, resume, saves
from fluxguard.limits import SaveLimits
from fluxguard.manifest import OURS

logger = logging.getLogger(__name__)

KEPT = 2
"""States of ours that stay; an older one goes once a newer one verifies and the loss after it is a number."""

_NAME = "{}-step{:08d}-fluxguard-state"
"""Not a name of upstream's, whose retention removes states by their numbers."""
_UNNAMED = "at"  # what upstream calls a step without --output_name
_ROOM = 2  # times the size of a state that must be free for the next: weights are saved on this disk, too


@dataclass
class _Cadence:
    """What this process has saved by itself, and what it has cost."""

    began: float | None = None
    spent: float = 0.0
    """Seconds of saving so far."""
    cost: float = 0.0
    """Seconds that the last save took."""
    tried: float = -math.inf
    """When the last one was tried."""
    size: int = 0
    """Bytes of the last one."""
    saved: deque[Path] = field(default_factory=deque)
    """Ours, oldest first."""


_cadence = _Cadence()


def begin_again() -> None:
    """Forget everything; for a process that trains twice."""
    global _cadence
    _cadence = _Cadence()


def is_due(limit: SaveLimits, *, elapsed: float, pause: float, spent: float, cost: float, at_epoch_end: bool) -> bool:
    """Return whether a state is to be saved now; all times in seconds.

    `elapsed` and `pause` are the time since the training and since the newest state; saving has taken `spent`, and the
    next will take about `cost`. What saving may cost comes first, also before the promise of one every so often.
    """
    may_take = math.inf if limit.share is None else limit.share * elapsed + (limit.allowance or 0.0)
    wanted = at_epoch_end or (limit.every is not None and pause >= limit.every)
    return wanted and spent + cost <= may_take


def save_if_due(accelerator: Any, args: Any, global_step: int, clock: Clock | None = None) -> None:
    """Save a state after an optimizer step, where that is due; called where the trainer itself saves at steps.

    Nothing happens without a supervisor. A state that cannot be saved costs a warning, never the training.
    """
    if pulse.heart() is None or not accelerator.is_main_process or saves.is_collective(accelerator):
        return
    here = resume.position()
    if here is None or global_step >= int(args.max_train_steps):
        return
    clock = clock or SystemClock()
    now = clock.monotonic()
    if _cadence.began is None:
        _cadence.began = _cadence.tried = now
    step, saved_at = saves.newest()
    if step == here.step or not _wanted(here, args, now, saved_at):
        return
    target = Path(args.output_dir).absolute() / _NAME.format(args.output_name or _UNNAMED, global_step)
    if _has_room(target.parent):
        _save(accelerator, target, clock)
    _cadence.tried = clock.monotonic()
    _cadence.cost = _cadence.tried - now
    _cadence.spent += _cadence.cost


def _wanted(here: resume.Position, args: Any, now: float, saved_at: float) -> bool:
    assert _cadence.began is not None
    return is_due(
        limits.current().save,
        elapsed=now - _cadence.began,
        pause=now - max(_cadence.tried, saved_at if saved_at > _cadence.began else -math.inf),
        spent=_cadence.spent,
        cost=_cadence.cost,
        at_epoch_end=here.batch >= here.batches_per_epoch and not _is_saved_next(here, args),
    )


def _is_saved_next(here: resume.Position, args: Any) -> bool:
    """Whether the trainer itself is about to save this epoch's end."""
    every = getattr(args, "save_every_n_epochs", None)
    return bool(getattr(args, "save_state", False) and every and here.epoch % every == 0)


def _has_room(folder: Path) -> bool:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return True  # it may be a folder yet to be made
    if free >= _ROOM * _cadence.size:
        return True
    logger.warning("%s has only %d MB left: no state is saved besides those you asked for", folder, free >> 20)
    return False


def _save(accelerator: Any, target: Path, clock: Clock) -> None:
    try:
        with pulse.during("saving"):
            saves.save_state(accelerator, target, clock, asked=OURS)
            _cadence.size = sum(path.stat().st_size for path in target.rglob("*"))
            _cadence.saved.append(target)
            while len(_cadence.saved) > KEPT:
                saves.remove_state(_cadence.saved.popleft(), target)
    except Exception as error:  # noqa: BLE001 - a full disk is an OSError to us and a RuntimeError to torch: both pass
        logger.warning("%s could not be saved (%s); the training goes on", target, error)
