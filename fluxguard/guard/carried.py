"""What belongs to a thread and must be the same on the reader that works for it: context variables, torch's modes."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from typing import Any

Modes = tuple[bool, bool, "int | None"]
"""Of torch: gradients are kept, inference mode, the current CUDA device."""


class Carried:
    """The surroundings of the thread that makes it. For one call, on one other thread."""

    __slots__ = ("_context", "_modes")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._modes = _modes()

    def run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return what `call` returns, called on this thread in those surroundings."""
        if self._modes is None:
            return self._context.run(call, *args)
        torch: Any = sys.modules["torch"]
        keeps_gradients, inference, device = self._modes
        if device is not None:
            torch.cuda.set_device(device)
        if inference:
            with torch.inference_mode():
                return self._context.run(call, *args)
        if torch.is_grad_enabled() != keeps_gradients:
            torch.set_grad_enabled(keeps_gradients)
        return self._context.run(call, *args)


def _modes() -> Modes | None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), device
    except AttributeError:  # another thread is importing it just now
        return None
