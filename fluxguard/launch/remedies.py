"""What another attempt may do otherwise than the one before: changes of a trainer's command that keep its arithmetic.

Each remedy is a ladder: asked again, it goes one rung further, until nothing is left of it to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fluxguard.launch.command import without
from fluxguard.launch.flags import Flags
from fluxguard.launch.trainer import script_index

FEWER_WORKERS = "fewer loader workers"
NO_SAMPLING = "no sample images"
MORE_SWAP = "more blocks swapped"
CACHE_ASIDE = "broken cache files set aside"

REMEDIES = (FEWER_WORKERS, NO_SAMPLING, MORE_SWAP, CACHE_ASIDE)
"""Every remedy by name, the same in diagnoses, decisions, the ledger and the page."""

FLUX_MOST_SWAPPED = 35
"""Of 19 double and 38 single blocks two of each kind stay, a double one counting as two single ones: 17 and 36 go."""
_SWAP_RUNGS = 3
"""A third of what can be swapped, two thirds, all of it: each rung costs a whole attempt, and each of these frees
about 4 GB."""
_LEAST_SWAP = 4  # a rung that frees next to nothing is passed over
_OF_SPLIT_MODE = 18  # what upstream makes of --split_mode
_NEVER = "1000000"  # epochs: the command line can take no flag of a file back, but move its next time out of reach

_SAMPLING = ("sample_at_first", "sample_every_n_steps", "sample_every_n_epochs", "sample_prompts")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One rung of a remedy, taken."""

    remedy: str
    argv: tuple[str, ...] = ()
    """The whole command afterwards; empty for a remedy that changes files, not the command."""
    flags: tuple[str, ...]
    """What changed, for people: each a flag and its value now, or what was done to a file."""
    files: tuple[str, ...] = ()
    """Files that are proven broken and have to be set aside for it."""


def changed(argv: Sequence[str], remedy: str, flags: Flags, *, most_swapped: int = 0) -> Change | None:
    """Return the command after one more rung of a remedy, or None when nothing is left of it to do.

    `flags` are those of the trainer with its --config_file; what `argv` says counts over them. `most_swapped` is the
    largest number of blocks that this trainer can swap, 0 for one that swaps none.
    """
    at = script_index(argv)
    if at is None or remedy not in _RUNGS:
        return None
    args = tuple(argv[at + 1 :])
    found = _RUNGS[remedy](args, flags.with_args(args), most_swapped)
    if found is None:
        return None
    args, said = found
    return Change(remedy=remedy, argv=(*argv[: at + 1], *args), flags=said)


def after(argv: Sequence[str], taken: Iterable[str], flags: Flags, *, most_swapped: int = 0) -> tuple[str, ...]:
    """Return the command after every rung that was taken so far, in this order."""
    for remedy in taken:
        change = changed(argv, remedy, flags, most_swapped=most_swapped)
        argv = change.argv if change else argv
    return tuple(argv)


_SAID = re.compile(r"(?P<flag>--\w+) (?P<now>.+) \(was (?P<before>.+)\)")


def net(said: Iterable[str]) -> tuple[str, ...]:
    """Return what several rungs have changed in all, for people: each flag once, as it is now and as it was at first.

    `said` are the `flags` of changes, in order.
    """
    found: dict[str, str] = {}
    for flag in said:
        known = _SAID.fullmatch(flag)
        before = _SAID.fullmatch(found.get(known["flag"], "")) if known else None
        if known and before:
            flag = f"{known['flag']} {known['now']} (was {before['before']})"
        found[known["flag"] if known else flag] = flag
    return tuple(found.values())


_Rung = Callable[[tuple[str, ...], Flags, int], "tuple[tuple[str, ...], tuple[str, ...]] | None"]


def _fewer_workers(args: tuple[str, ...], flags: Flags, _: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    workers = flags.max_data_loader_n_workers
    fewer = 1 if workers > 1 else 0
    if workers == 0 or (fewer == 0 and flags.configured("persistent_data_loader_workers")):
        return None  # persistent workers need one, and the command line cannot take the file's word back
    drop = ["max_data_loader_n_workers", *(["persistent_data_loader_workers"] if fewer == 0 else [])]
    said = [f"--max_data_loader_n_workers {fewer} (was {workers})"]
    if fewer == 0 and flags.persistent_data_loader_workers:
        said.append("without --persistent_data_loader_workers")
    return (*without(args, drop), "--max_data_loader_n_workers", str(fewer)), tuple(said)


def _no_sampling(args: tuple[str, ...], flags: Flags, _: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    asks = [name for name in _SAMPLING if name != "sample_prompts" and flags.given(name)]
    asks = [name for name in asks if getattr(flags, name) and not _never(flags, name)]
    if not asks or flags.configured("sample_at_first"):
        return None
    configured = any(flags.configured(name) for name in asks)
    kept = without(args, _SAMPLING)
    if configured:
        return (*kept, "--sample_every_n_epochs", _NEVER), (f"--sample_every_n_epochs {_NEVER} (never)",)
    given = [name for name in _SAMPLING if flags.given(name) and not flags.configured(name)]
    return kept, tuple(f"without --{name}" for name in given)


def _never(flags: Flags, name: str) -> bool:
    return name.startswith("sample_every") and flags.sample_every_n_epochs == int(_NEVER)


def _more_swap(args: tuple[str, ...], flags: Flags, most: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    now = flags.blocks_to_swap
    if now is None:
        now = _OF_SPLIT_MODE if flags.split_mode else 0
    if now >= most or flags.cpu_offload_checkpointing:
        return None
    rungs = (-(-most * rung // _SWAP_RUNGS) for rung in range(1, _SWAP_RUNGS + 1))
    more = next((rung for rung in rungs if rung >= now + _LEAST_SWAP), most)
    said = (f"--blocks_to_swap {more} (was {now})",)
    return (*without(args, ["blocks_to_swap"]), "--blocks_to_swap", str(more)), said


_RUNGS: dict[str, _Rung] = {FEWER_WORKERS: _fewer_workers, NO_SAMPLING: _no_sampling, MORE_SWAP: _more_swap}
