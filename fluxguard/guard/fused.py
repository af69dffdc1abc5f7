"""Fused optimizers: each of several steps by itself inside the backward pass, as soon as all its gradients are there.

A group in which one parameter got no gradient never steps, and nothing says so: its blocks are not trained.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fluxguard.guard import pulse

logger = logging.getLogger(__name__)


class _Told:
    def __init__(self) -> None:
        self.steps = 0


_told = _Told()


def fused_steps(hooked: Mapping[int, int], sizes: Sequence[int]) -> None:
    """Report the optimizers that did not step in the step before.

    `hooked` counts the parameters of each optimizer that got a gradient, `sizes` those that it has; called where the
    counts are reset for the next step.
    """
    if not hooked:  # before the first step
        return
    idle = [number for number, size in enumerate(sizes) if hooked.get(number, 0) < size]
    if not idle:
        return
    _told.steps += 1
    if (heart := pulse.heart()) is not None:
        heart.unstepped = _told.steps
    if _told.steps & (_told.steps - 1) == 0:  # the 1st, 2nd, 4th, 8th ... time: the log stays readable
        logger.warning(
            "%d of %d optimizers did not step: not all of their parameters got a gradient (optimizer %s; %d steps so"
            " far). Their blocks are not trained.",
            len(idle),
            len(sizes),
            ", ".join(map(str, idle[:8])),
            _told.steps,
        )
