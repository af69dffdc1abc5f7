"""Gathers a tensor of every rank within a limit, and leaves nothing behind that the end of the process waits for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

_POLL = 0.001  # NCCL tells nobody when it is done; a gathering takes milliseconds


class Gathering:
    """What gathers the tensors of all ranks of a group, within `limit` seconds from now for all of them together.

    Called as torchmetrics calls its `dist_sync_fn`: with a tensor, and a group that is None for the default one;
    returns the tensors of all ranks, by rank. They may differ in shape, not in the number of their dimensions. Raises
    torch's RuntimeError when a rank is gone or the limit has passed.
    """

    def __init__(self, limit: float | None) -> None:
        self._until = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Return the seconds that are left, not less than 0; None without a limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def __call__(self, tensor: Any, group: Any = None) -> list[Any]:
        import torch
        import torch.distributed as dist
        from torch.nn.functional import pad

        tensor = tensor.contiguous()
        if not tensor.ndim:
            return self._gather(tensor, group)
        own = torch.tensor(tensor.shape, device=tensor.device)
        sizes = [tuple(size.tolist()) for size in self._gather(own, group)]
        longest = [max(lengths) for lengths in zip(*sizes, strict=True)]
        if len(set(sizes)) == 1:
            return self._gather(tensor, group)
        missing = [length - has for length, has in zip(longest, tensor.shape, strict=True)]
        padded = pad(tensor, [width for more in reversed(missing) for width in (0, more)])
        gathered = zip(self._gather(padded, group), sizes, strict=True)
        found = [one[tuple(slice(length) for length in size)] for one, size in gathered]
        found[dist.get_rank(group)] = tensor
        return found

    def _gather(self, tensor: Any, group: Any) -> list[Any]:
        import torch
        import torch.distributed as dist

        with torch.no_grad():
            found = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
            work = dist.all_gather(found, tensor, group=group, async_op=True)
            self._wait(work, on_gpu=tensor.is_cuda)
        return found

    def _wait(self, work: Any, *, on_gpu: bool) -> None:
        left = self.left()
        if left is None:
            work.wait()
        elif not on_gpu:
            work.wait(timedelta(seconds=max(left, _POLL)))  # 0 is without a limit
        else:  # NCCL's wait only orders the GPU's work, and with a limit it would end the process when that passes
            while not work.is_completed():
                if not self.left():
                    raise RuntimeError("the collective did not end")
                time.sleep(_POLL)
            work.wait()


@contextlib.contextmanager
def bounded(group: Any, limit: float | None) -> Iterator[None]:
    """Let the collectives of a gloo group end within `limit` seconds, whoever waits for them.

    One that was given up goes on in a thread of the group, for which the end of the process waits: without this for
    as long as the group's own timeout, half an hour. It is not for NCCL, which ends the process instead.
    """
    backend = None if limit is None else _gloo(group)
    if backend is None or limit is None:
        yield
        return
    before = backend.options._timeout
    backend._set_default_timeout(timedelta(seconds=limit))
    try:
        yield
    finally:
        backend._set_default_timeout(before)


def _gloo(group: Any) -> Any:
    """Return the part of a group that is gloo and can be told its limit; None where there is none.

    These places are torch's own and differ between its versions; without them only the end takes longer.
    """
    import torch
    import torch.distributed as dist

    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        group = group or dist.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("cpu"))
        if isinstance(backend, dist.distributed_c10d.ProcessGroupGloo) and backend.options._timeout:
            return backend if hasattr(backend, "_set_default_timeout") else None
    return None


def members(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group of its own, as the default group numbers them; none when this rank is outside."""
    import torch.distributed as dist

    return () if dist.get_rank(group) < 0 else tuple(dist.get_process_group_ranks(group))


def carried(group: Any = None) -> tuple[set[str], str]:
    """Return the types of device whose tensors a group can gather, and its backends in words."""
    import torch.distributed as dist

    words = str(dist.get_backend_config(group))
    pairs = [pair.split(":") for pair in words.split(",")]
    return {device for device, *_ in pairs}, ", ".join(sorted({backend for *_, backend in pairs}))
