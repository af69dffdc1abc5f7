"""Work shared among processes, where the platform can fork: searching a checkout is all processor time."""

from __future__ import annotations

import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_MOST = 4
_WORTH_IT = 1 << 20
"""Bytes of work below which a second process costs more than it saves."""
_NUMBER = struct.Struct("=H")
_ROOM = 4096 // _NUMBER.size
"""How many numbers any pipe holds before its writer would have to wait for a reader."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared(
    work: Callable[[Item], Result], items: Sequence[Item], size: Callable[[Item], int], done: Callable[[int], object]
) -> list[Result]:
    """Return `work` of each item, in order; `size` says how much work one is, `done` is told how many are ready.

    What `work` raises is raised here. Whatever a child could not do is done by this process.
    """
    results: dict[int, Result] = {}
    if sum(map(size, items)) >= _WORTH_IT and len(items) <= _ROOM and (count := _processes()) > 1:
        reading = _filled(sorted(range(len(items)), key=lambda number: -size(items[number])))
        children = [_start(work, items, reading) for _ in range(count - 1)]
        for number in _taken(reading):
            results[number] = work(items[number])
            done(len(results))
        os.close(reading)
        for child in children:
            results |= _finish(child)
    for number, item in enumerate(items):
        if number not in results:
            results[number] = work(item)
            done(len(results))
    return [results[number] for number in range(len(items))]


def _processes() -> int:
    # A copy of a process that has threads may hold their locks for ever.
    if not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(_MOST, available)


def _filled(numbers: Sequence[int]) -> int:
    """Return where the numbers of the items, the largest first, can be taken from by whoever is free."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(map(_NUMBER.pack, numbers)))
    os.close(writing)
    return reading


def _taken(reading: int) -> Iterator[int]:
    while number := os.read(reading, _NUMBER.size):
        yield _NUMBER.unpack(number)[0]


def _start(work: Callable[[Item], Result], items: Sequence[Item], tasks: int) -> tuple[int, int]:
    """Start a child that takes tasks; return its process number and where it writes its results."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps({number: work(items[number]) for number in _taken(tasks)}))
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
