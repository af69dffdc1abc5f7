"""Ranks as threads: what each says at a meeting, all hear."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_LONGEST = 10.0


class Meetings:
    """The meetings of some ranks; how many there were is `count`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self.longest = 0
        self._said: dict[int, Any] = {}
        self._met = threading.Barrier(size, timeout=_LONGEST)

    def exchange(self, rank: int, said: T) -> list[T]:
        """Give what a rank says and return what all say."""
        self._said[rank] = said
        if self._met.wait() == 0:
            self.count += 1
        self.longest = max(self.longest, len(said))  # type: ignore[arg-type]
        heard = [self._said[other] for other in range(self.size)]
        self._met.wait()
        return heard

    def run(self, of_rank: Callable[[int], T]) -> list[T]:
        """Run a function for each rank at once and return what they return, by rank."""
        with ThreadPoolExecutor(self.size) as pool:
            return [one.result() for one in [pool.submit(of_rank, rank) for rank in range(self.size)]]
