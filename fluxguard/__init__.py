"""fluxguard: every FLUX LoRA training ends finished and verified, or stopped with an explanation."""

from __future__ import annotations

import importlib
from typing import Any

# Nothing is imported before it is asked for: a page that imports the trainer's modules pays for no part of the guard.
_HOME = {
    "DataLoader": "loader",
    "advance": "pulse",
    "bar": "resume",
    "barrier": "barrier",
    "batches": "resume",
    "check_loss": "losses",
    "check_output": "commands",
    "collective": "barrier",
    "counted": "pulse",
    "denoising": "sampling",
    "during": "pulse",
    "end_later": "finishing",
    "epochs": "resume",
    "exit_after": "deadlines",
    "fail_after": "deadlines",
    "first_step": "resume",
    "fused_steps": "fused",
    "load_state": "saves",
    "loss_slot": "resume",
    "memory": "allocator",
    "outcome": "fluxgym",
    "phase": "pulse",
    "progress": "pulse",
    "reads": "reads",
    "rebuilds": "reads",
    "remove_state": "saves",
    "result": "waits",
    "resume_point": "resume",
    "sample": "sampling",
    "samples": "sampling",
    "save_if_due": "cadence",
    "save_state": "saves",
    "saved": "writes",
    "shutdown": "waits",
    "step": "pulse",
    "supervised": "fluxgym",
    "train_begins": "pulse",
    "train_ends": "finishing",
    "unless_finished": "resume",
    "uploads": "uploads",
    "whole": "writes",
}

_MODULES = ("limits",)

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.guard.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
