"""Random numbers of several ranks: another stream on each, the same ones where all build the same."""

from __future__ import annotations

import contextlib
import hashlib
import random
import secrets
from collections.abc import Iterator

from fluxguard.distributed import world
from fluxguard.distributed.meetings import decisions
from fluxguard.guard.randoms import random_states, restore

_BITS = 32  # what numpy takes
_base: int | None = None


def seed(base: int | None = None) -> int:
    """Seed python, numpy and torch (with its GPUs), each rank with another number, and return that of this rank.

    The numbers depend on `base` and the rank alone: the same ones again in the next attempt, none of them that of
    another rank or of another `base`. With None rank 0 draws a base and all take it. `load_or_init` builds the model
    from `base` itself, alike on every rank and for any number of them.
    """
    global _base
    if base is None:
        drawn = decisions.decide(lambda: secrets.randbits(_BITS), "seed")
        base = int(drawn)
    _base = base
    own = of_rank(base, world.current().rank)
    _seed_all(own)
    return own


def of_rank(base: int, *places: int) -> int:
    """Return the seed of a rank (and a step, an epoch, ...): 32 bits that nothing but all of these numbers gives."""
    digest = hashlib.sha256("/".join(map(str, (base, *places))).encode()).digest()
    return int.from_bytes(digest[: _BITS // 8], "big")


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Draw the same random numbers on every rank in a block, by the base of `seed`; those of before go on behind it.

    Without a base each rank draws on as it would.
    """
    if _base is None:
        yield
        return
    before = random_states()
    _seed_all(of_rank(_base))
    try:
        yield
    finally:
        restore(before)


def reseed(*places: int) -> None:
    """Seed this rank anew, by the base of `seed` and these numbers, where no random states were saved for it."""
    _seed_all(of_rank(_base or 0, world.current().rank, *places))


def _seed_all(number: int) -> None:
    import numpy
    import torch

    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)
