"""Ways out of a training loop that only some ranks take, as an early stop does that rank 0 decides alone."""

from __future__ import annotations

import ast
import re

from fluxguard.patching.scan_names import last
from fluxguard.patching.scan_walk import Leaving, Place

WAYS_OUT = re.compile(r"^[ \t]+(?:break|continue|return)\b", re.MULTILINE)

_TRAINS = ("backward(", "train(", "train_epoch(", "train_one_epoch(", "train_step(", "training_step(")
_RANK = (
    "rank",
    "is_main",
    "is_local_main",
    "is_master",
    "main_process",
    "master_process",
    "is_global_zero",
    "is_primary",
    ".main",
)
_A_STEP = re.compile(r"^(?:backward|train(_one|_an?)?(_epoch|_step|_batch)?|training_(epoch|step))$")


def may_leave(text: str) -> bool:
    """Whether a text may hold a training loop with a condition on the rank in it."""
    return any(word in text for word in _TRAINS) and any(word in text for word in _RANK)


def misses_steps(node: Leaving, place: Place) -> bool:
    """Whether a way out of a loop, taken on some ranks only, leaves the others alone in a training step."""
    if place.loop is None:
        return False
    steps = [
        call.lineno for call in ast.walk(place.loop) if isinstance(call, ast.Call) and _A_STEP.match(last(call.func))
    ]
    # Who goes on with the next turn misses what comes behind; who leaves misses all turns that follow.
    return any(line > node.lineno for line in steps) if isinstance(node, ast.Continue) else bool(steps)
