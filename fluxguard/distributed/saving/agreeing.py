"""Which state all ranks can go on from."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fluxguard import manifest
from fluxguard.distributed import world
from fluxguard.distributed.meetings import hearing, meeting
from fluxguard.distributed.saving import places, sealing
from fluxguard.errors import RanksDisagree, StateUnusable

logger = logging.getLogger(__name__)

_KIND = "newest_state"
_NONE = -1
_LONGEST = 300  # bytes of a reason, before it is escaped for its way

Exchange = Callable[[str, str], list[str]]
"""Gives what is asked and what this rank says to all, and returns what each says, by rank."""
Look = Callable[[int], str]
"""Returns the identity of the state of a step. Raises StateUnusable unless it is whole."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one rank finds in one state."""

    identity: str = ""
    reason: str = ""
    """Why it cannot be used; empty when it is whole."""


_read: set[tuple[Path, str]] = set()
"""States that were read to the last byte, by path and identity."""


def newest_state(folder: str | Path) -> Path | None:
    """Return the newest state in `folder` that every rank has and finds whole; None when there is none.

    A state that is damaged, or that is not on the disk of every rank, is passed over with a warning that names rank
    and reason, and stays where it is. Of the ranks that see the same folder one reads every byte. Raises OSError,
    on the other ranks RankFailed, and what `barrier` raises.
    """
    place = Path(folder).absolute()
    writer = places.writer_of(place)
    rank = world.current().rank
    with hearing.together(_KIND):
        if rank == writer:
            sealing.bring_back(place)
    with hearing.together(_KIND):
        steps = sealing.found(place)

    def look(step: int) -> str:
        state = sealing.path_of(place, step)
        if rank == writer:
            manifest.verify(state)
        else:
            sealing.glance(state)
        return sealing.identity(state)

    step, passed = newest_of_all(steps, look, _exchange)
    for why in passed:
        logger.warning("%s: passed over: %s", _KIND, why)
    if step is None:
        return None
    _read.add((state := sealing.path_of(place, step), sealing.identity(state)))
    return state


def verify(state: Path) -> str:
    """Return the identity of a state after every byte of it was read, unless `newest_state` has just done that.

    Raises StateUnusable, on the other ranks RankFailed; RanksDisagree when they mean different states.
    """
    with hearing.together("state"):
        sealing.glance(state)
        identity = sealing.identity(state)
    said = meeting.meet(_KIND, "identity", payload=identity.encode())
    if len(set(said)) > 1:
        raise RanksDisagree("state", [f"rank {rank} has {one.decode()}" for rank, one in enumerate(said)])
    if (state, identity) not in _read:
        writer = places.writer_of(state.parent)
        with hearing.together("state"):
            if world.current().rank == writer:
                manifest.verify(state)
    return identity


def _exchange(what: str, said: str) -> list[str]:
    return [one.decode() for one in meeting.meet(_KIND, what, payload=said.encode())]


def newest_of_all(steps: Sequence[int], look: Look, exchange: Exchange) -> tuple[int | None, list[str]]:
    """Return the newest step whose state all ranks find whole, and why newer ones were passed over, in words."""
    left = sorted(steps, reverse=True)
    passed: list[str] = []
    while True:
        newest = [int(said) for said in exchange("newest", str(left[0] if left else _NONE))]
        step = min(newest)
        if step != max(newest):
            lacking = _ranks([rank for rank, one in enumerate(newest) if one == step])
            passed.append(f"step {max(newest)} is not with {lacking}")
        if step == _NONE:
            return None, passed
        while left and left[0] > step:
            left.pop(0)
        mine = _verdict(left, step, look)
        verdicts = [Verdict(**json.loads(said)) for said in exchange(f"step {step}", json.dumps(asdict(mine)))]
        if why := refused(step, verdicts):
            passed.append(why)
            left = [one for one in left if one != step]
            continue
        return step, passed


def _verdict(left: Sequence[int], step: int, look: Look) -> Verdict:
    if not left or left[0] != step:
        return Verdict(reason="it is not there")
    try:
        return Verdict(identity=look(step))
    except StateUnusable as unusable:
        return Verdict(reason=_cut(unusable.reason or str(unusable)))
    except OSError as error:
        return Verdict(reason=_cut(str(error)))


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:_LONGEST].decode(errors="ignore")


def refused(step: int, verdicts: Sequence[Verdict]) -> str:
    """Return why a state cannot be used, in words that name ranks; empty when all can."""
    bad = {rank: one.reason for rank, one in enumerate(verdicts) if one.reason}
    if bad:
        reasons = sorted(set(bad.values()))
        told = [f"{reason} ({_ranks([rank for rank in bad if bad[rank] == reason])})" for reason in reasons]
        return f"step {step}: {'; '.join(told)}"
    if len({one.identity for one in verdicts}) > 1:
        others = [rank for rank, one in enumerate(verdicts) if one.identity != verdicts[0].identity]
        return f"step {step}: {_ranks(others)} and rank 0 hold different states"
    return ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
