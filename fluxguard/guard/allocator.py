"""The GPU's memory, told in the heartbeat: an allocator that must retry is the last thing before CUDA OOM."""

from __future__ import annotations

import sys
import time

from fluxguard.guard import pulse

_EVERY = 1.0  # seconds between two looks: the counts only grow, so a look in between would tell nothing more


class _Looked:
    def __init__(self) -> None:
        self.at = -_EVERY


_looked = _Looked()


def memory() -> None:
    """Note in the heartbeat how often the CUDA allocator had to retry, and failed.

    Neither starts CUDA nor waits for the GPU: the counts are the allocator's own, in main memory. Written with the
    next beat.
    """
    heart = pulse.heart()
    now = time.monotonic()
    if heart is None or now - _looked.at < _EVERY:
        return
    _looked.at = now
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    # Not the flat form, which sorts two hundred names at each call.
    if cuda is None or not cuda.is_initialized() or not hasattr(cuda, "memory_stats_as_nested_dict"):
        return
    counts = cuda.memory_stats_as_nested_dict()
    heart.retries = int(counts.get("num_alloc_retries", 0))
    heart.ooms = int(counts.get("num_ooms", 0))
