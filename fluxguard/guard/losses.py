"""Losses that are no numbers: the training is stopped, and the last good state is named.

In bf16 one such loss poisons the weights for good: everything after it is lost time, and the retention of old states
deletes the good ones meanwhile.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fluxguard import limits
from fluxguard.guard import pulse
from fluxguard.guard.ending import Verdict, end_process

logger = logging.getLogger(__name__)

CAUSE = "loss not finite"
ASIDE = ".not-finite"
"""Appended to the name of a state that was saved after the weights were lost: nothing may go on from it."""


class _Losses:
    """What is known about the losses and the states of this process."""

    def __init__(self) -> None:
        self.bad = 0
        """Losses in a row that are no numbers."""
        self.since = 0
        """The step of the first of them."""
        self.good: Path | None = None
        """The newest state after which a loss of its own weights was a number."""
        self.unproven: list[_Unproven] = []
        """What happened since then, oldest first."""


@dataclass
class _Unproven:
    """A state, or something to do once the newest state has proven good."""

    state: Path | None = None
    action: Callable[[], object] | None = None
    losses: int = 0
    """Losses that were numbers since."""


_PROVEN = 2
"""Good losses after a save: the first is still of its own step, reckoned before the weights were changed and saved."""

_losses = _Losses()


def saved(path: str | os.PathLike[str]) -> None:
    """Note that a state was saved: good once a loss that its weights made is a number."""
    _losses.unproven.append(_Unproven(state=Path(path)))


def loaded(path: str | os.PathLike[str]) -> None:
    """Note the state from which this training goes on."""
    _losses.good = Path(path)


def once_good(action: Callable[[], object]) -> None:
    """Do `action`, such as removing an older state, when the newest has proven good; at once outside of a trainer."""
    if pulse.begun():
        _losses.unproven.append(_Unproven(action=action))
    else:
        action()


def training_ended() -> None:
    """Do what waits for a good loss, if the last one was: no other comes."""
    if not _losses.bad:
        _catch_up(_PROVEN)


def check_loss(loss: float, step: int) -> None:
    """Note the loss of a batch; end the process, never to be tried again, when too many in a row are no numbers.

    `step` counts the optimizer steps. A plain number is needed: this must not wait for the GPU.
    """
    if math.isfinite(loss):
        _losses.bad = 0
        _catch_up(1)
        return
    if not _losses.bad:
        _losses.since = step
        logger.warning("the loss at step %d is not a number (%s)", step, loss)
    _losses.bad += 1
    limit = limits.current().max_bad_losses
    if limit is not None and _losses.bad >= limit and pulse.begun():
        _stop(limit)


def _catch_up(losses: int) -> None:
    """Count good losses, and take what they prove for good."""
    for one in _losses.unproven:
        one.losses += losses
    proven = [one for one in _losses.unproven if one.losses >= _PROVEN]
    _losses.unproven = [one for one in _losses.unproven if one.losses < _PROVEN]
    for one in proven:
        _losses.good = one.state or _losses.good
        if one.action is not None:
            one.action()


def _stop(limit: int) -> None:
    aside = [one.state for one in _losses.unproven if one.state is not None and _set_aside(one.state)]
    good = f"the last good state is {_losses.good}" if _losses.good else "no state was saved before"
    words = f"the loss was not a number {limit} times in a row, from step {_losses.since} on; {good}"
    if aside:
        words += f"; what was saved after it ({', '.join(path.name for path in aside[:3])}{' ...' * (len(aside) > 3)})"
        words += f" got the ending {ASIDE}"
    if (heart := pulse.heart()) is not None:
        heart.loss = math.nan
    end_process(
        Verdict(
            what=words,
            cause=CAUSE,
            limit=limit,
            waited=0.0,
            again=False,
            file=str(_losses.good) if _losses.good else None,
            said=True,
        )
    )


def _set_aside(state: Path) -> bool:
    try:
        state.rename(state.with_name(state.name + ASIDE))
    except OSError:  # retention has removed it, or one of that name lies there: it is named all the same
        return False
    return True
