"""fluxguard: every FLUX LoRA training ends finished and verified, or stopped with an explanation."""

from __future__ import annotations

import importlib
from typing import Any

# Nothing is imported before it is asked for: a page that imports the trainer's modules pays for no part of the guard.
_HOME = {
    "DataLoader": "loader",
    "batches": "resume",
    "during": "pulse",
    "exit_after": "deadlines",
    "fail_after": "deadlines",
    "load_state": "saves",
    "phase": "pulse",
    "progress": "pulse",
    "reads": "reads",
    "result": "waits",
    "resume_point": "resume",
    "save_state": "saves",
    "step": "pulse",
    "train_begins": "pulse",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.guard.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
