"""Work shared among processes, where the platform can fork: searching a checkout is all processor time."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_MOST = 4
_WORTH_IT = 1 << 20
"""Bytes of work below which a second process costs more than it saves."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared(
    work: Callable[[Item], Result], items: Sequence[Item], size: Callable[[Item], int], done: Callable[[int], object]
) -> list[Result]:
    """Return `work` of each item, in order; `size` says how much work one is, `done` is told how many are ready.

    What `work` raises is raised here. Whatever a child could not do is done by this process.
    """
    total = sum(map(size, items))
    shares = _shares(items, size, _processes() if total >= _WORTH_IT else 1)
    children = [_start(work, items, share) for share in shares[1:]]
    results: dict[int, Result] = {}
    for number in shares[0]:
        results[number] = work(items[number])
        done(len(results))
    for child in children:
        results |= _finish(child)
        done(len(results))
    return [results[number] if number in results else work(item) for number, item in enumerate(items)]


def _processes() -> int:
    # A copy of a process that has threads may hold their locks for ever.
    if not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(_MOST, available)


def _shares(items: Sequence[Item], size: Callable[[Item], int], count: int) -> list[list[int]]:
    """Return the items' numbers in shares of about the same size; the first one is the smallest."""
    shares: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for number in sorted(range(len(items)), key=lambda number: -size(items[number])):
        least = sizes.index(min(sizes))
        shares[least].append(number)
        sizes[least] += size(items[number])
    return [share for _, share in sorted(zip(sizes, shares, strict=True))]


def _start(work: Callable[[Item], Result], items: Sequence[Item], share: Sequence[int]) -> tuple[int, int]:
    """Start a child with a share; return its process number and where it writes its results."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps({number: work(items[number]) for number in share}))
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is to be ended or flushed here


def _finish(child: tuple[int, int]) -> dict[int, Result]:
    """Return what a child has done; nothing when it failed."""
    number, reading = child
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(number, 0)
    return pickle.loads(data) if status == 0 else {}
