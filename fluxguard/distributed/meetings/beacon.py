"""What each rank tells the others of itself, in the store, for those that cannot see its heartbeat."""

from __future__ import annotations

from collections.abc import Iterable

from fluxguard.distributed.meetings import sight
from fluxguard.distributed.meetings.line import Store
from fluxguard.distributed.meetings.sight import Who, Word

EVERY = 1.0
"""Seconds between two words of one rank."""


class Beacon:
    """This rank's word in the store, and the words of the others; used on one thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._number = 0

    def tell(self, store: Store, *, failed: bool = False) -> None:
        """Say what this rank does, and whether it has failed in that. Waits for no answer."""
        if not self._number:
            store.set(f"who/{self._rank}", sight.own().pack())
        store.set(f"word/{self._rank}", sight.own_word(self._number, failed=failed).pack())
        self._number += 1


def hear(store: Store, ranks: Iterable[int]) -> dict[int, tuple[Who | None, Word | None]]:
    """Return who these ranks are and what they said last; those that said nothing yet are left out."""
    told = [rank for rank in ranks if store.check([f"word/{rank}"])]
    if not told:
        return {}
    said = store.multi_get([f"{part}/{rank}" for rank in told for part in ("who", "word")])
    pairs = zip(told, said[::2], said[1::2], strict=True)
    return {rank: (sight.unpack_who(who), sight.unpack_word(word)) for rank, who, word in pairs}
