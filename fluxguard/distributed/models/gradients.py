"""The sums of a wrapped model's gradients, noted as a collective: so it shows for whom a rank waits in its backward.

DDP waits for them at the very end of a backward, in a callback that it gives to autograd. Ours stand before and behind
that one, so what is noted is this wait and nothing of the user's. It is C++, so what torch raises there passes no code
of ours until the block of `setup` ends: there it becomes the error that names who is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fluxguard.distributed.meetings.collectives import collective

if TYPE_CHECKING:
    from torch import Tensor

GRADIENTS, BUFFERS = "gradients", "buffers"
"""What the collectives of a wrapped model are for, as others read it."""

_waiting: list[Sums] = []


class Sums:
    """The gradients of one wrapped model."""

    def __init__(self) -> None:
        self._asked = False
        self._open: AbstractContextManager[None] | None = None

    def follow(self, outputs: Any) -> None:
        """Note the wait at the end of the backward that comes from what the model has returned."""
        self._asked = False
        for tensor in _tensors(outputs):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._begins)  # type: ignore[no-untyped-call]

    def _begins(self, _: Tensor) -> None:
        """The backward begins: whatever it asks autograd to do at its end comes later than this."""
        if not self._asked:
            self._asked = True
            _at_the_end()(self._waits)

    def _waits(self) -> None:
        self.end()  # one that failed, where the program went on
        self._asked = False
        self._open = collective(GRADIENTS)
        self._open.__enter__()
        _waiting.append(self)
        _at_the_end()(self.end)  # behind DDP's own, which is there by now

    def end(self, error: BaseException | None = None) -> None:
        """Note that the wait is over. Raises RanksMissing when `error` is torch's about ranks that are missing."""
        wait, self._open = self._open, None
        if wait is not None:
            _waiting.remove(self)
            wait.__exit__(None if error is None else type(error), error, None)


def explain(error: BaseException | None) -> None:
    """Raise RanksMissing, with who is missing, when `error` is how torch gave up the sum of gradients."""
    for one in tuple(_waiting):
        one.end(error)


@functools.cache
def _at_the_end() -> Callable[[Callable[[], None]], None]:
    """Return what lets autograd call something at the end of the backward that goes on, as DDP does."""
    from torch.autograd import Variable

    return Variable._execution_engine.queue_callback


def _tensors(outputs: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(outputs, torch.Tensor):
        yield outputs
        return
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    if not isinstance(parts, (list, tuple)) and not isinstance(outputs, Mapping):
        parts = vars(outputs).values() if hasattr(outputs, "__dataclass_fields__") else ()
    for part in parts:
        yield from _tensors(part)
