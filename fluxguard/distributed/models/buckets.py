"""The layout in which DDP sums gradients, settled before the first step, so that a resumed training sums alike.

DDP lays gradients into buckets in the order of the parameters, and lays them anew, in the order in which they became
ready, after the first backward of a process. With more than two ranks the place in a bucket decides in which order
the ranks' numbers are added, and so the last bits: the first step after a resume would differ from the same step of a
training that was never cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def settle(wrapped: Any) -> None:
    """Let a new DDP lay its buckets for good, by a backward of zeros in the reverse order of the parameters.

    Nothing for one that finds unused parameters, which never lays them anew; for one with a static graph, which would
    take this backward for its graph; and where a backward does more than gradients: hooks of parameters (an optimizer
    within the backward), sparse gradients, a mixed precision of DDP's own.
    """
    import torch

    model = wrapped.module
    parameters = list(model.parameters())
    if any(getattr(one, hooks, None) for one in parameters for hooks in _HOOKS):
        return
    if wrapped.find_unused_parameters or wrapped.static_graph or getattr(wrapped, "mixed_precision", None) is not None:
        return
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        return
    before, broadcasts = [parameter.grad for parameter in parameters], wrapped.broadcast_buffers
    wrapped.module = _zeros_of(model)
    wrapped.broadcast_buffers = False  # of what stands in for the model, which has none: torch would not get over it
    try:
        with torch.enable_grad():
            wrapped(None).backward()
    finally:
        wrapped.module, wrapped.broadcast_buffers = model, broadcasts
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def _zeros_of(model: Any) -> Any:
    import torch
    from torch import nn

    class Zeros(nn.Module):
        """0, to which every trained parameter of a model has contributed."""

        def forward(self, _: None) -> Tensor:
            total = torch.zeros(())
            for parameter in model.parameters():
                if parameter.requires_grad:
                    numbers = torch.view_as_real(parameter) if parameter.is_complex() else parameter
                    total = total.to(parameter.device) + (numbers.reshape(-1)[:1].float() * 0).sum()
            return total

    return Zeros()
