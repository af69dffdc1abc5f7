"""torchrun whose ranks are forked from it: with spawn(..., torch=True) none of its processes has to import torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FORKED = ("--start-method", "fork", "--run-path")
"""Its options for that. The ranks are like others, but their command line and environment in /proc are the agent's."""


def program() -> Path:
    """Return the file that torchrun is."""
    found = importlib.util.find_spec("torch.distributed.run")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)
