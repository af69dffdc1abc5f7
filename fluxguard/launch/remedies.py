"""What another attempt may do otherwise than the one before: changes of a trainer's command that keep its arithmetic."""

from __future__ import annotations

FEWER_WORKERS = "fewer loader workers"
NO_SAMPLING = "no sample images"
MORE_SWAP = "more blocks swapped"
CACHE_ASIDE = "broken cache files set aside"

REMEDIES = (FEWER_WORKERS, NO_SAMPLING, MORE_SWAP, CACHE_ASIDE)
"""Every remedy by name, the same in diagnoses, decisions, the ledger and the page."""
