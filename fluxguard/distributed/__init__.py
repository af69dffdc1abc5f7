"""Parts for any torch.distributed or accelerate loop: ranks that agree, and hangs that name the rank.

They work after `setup`, when accelerate or the user has made the process group, and with no group at all: a world of
one, in which each of them is the identity. None needs a supervisor; each uses one when it is there.
"""

from __future__ import annotations

import importlib
from typing import Any

# As in fluxguard itself, nothing is imported before it is asked for. No file or folder here may be called like one
# of these names: importing it would put the module in the place of the function.
_HOME = {
    "Sampler": "models.sampling",
    "World": "world",
    "barrier": "meetings.barriers",
    "collective": "meetings.collectives",
    "compute": "measures.metrics",
    "current": "world",
    "decide": "meetings.decisions",
    "fid_in_subprocess": "measures.fid",
    "load_or_init": "models.weights",
    "load_state": "saving.states",
    "mean": "measures.scalars",
    "newest_state": "saving.states",
    "on_main": "meetings.mainrank",
    "preflight": "checks.checkup",
    "save_state": "saving.states",
    "seed": "models.seeds",
    "setup": "start.joining",
    "teardown": "start.joining",
    "together": "meetings.hearing",
    "wrap": "models.wrapping",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
