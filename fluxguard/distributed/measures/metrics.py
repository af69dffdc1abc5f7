"""Metrics of torchmetrics over all ranks: every rank gets the value, or every rank gets an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fluxguard import limits
from fluxguard.distributed.measures import torchmetric
from fluxguard.distributed.measures.gathering import Gathering, bounded, carried, members
from fluxguard.distributed.measures.holdings import Held, agree, only_some
from fluxguard.distributed.meetings.hearing import failure, hear, together
from fluxguard.distributed.meetings.meeting import PAYLOAD, meet
from fluxguard.errors import DeadlineExceeded, RanksMissing
from fluxguard.guard import peers
from fluxguard.guard.collectives import noted

logger = logging.getLogger(__name__)

_KIND, _GATHERING, _GATHERED = "metric", "metric gathering", "metric gathered"
_WRONG = b"!"  # before the payload of a rank that cannot say what it holds
_SLOW = "every rank is here, so the line between them is slow, or one was stopped for a while"
_NAMING = 0.5  # for those who gave the gathering up to find out who is missing, when the limit itself has passed


def compute(
    metric: Any,
    what: str = "",
    *,
    local: bool = False,
    uneven: bool = False,
    limit: float | None = None,
    epoch: int | None = None,
    step: int | None = None,
) -> Any:
    """Return the value of a torchmetrics metric, or collection of metrics, over the data of all ranks, on every rank.

    Every rank calls it, at the same place; rank 0 reports. The ranks meet first and compare what they hold: none is in
    a collective before all are known to come. Then the states are gathered, all of them, and each rank computes by
    itself; what one of them fails in, such as a lack of memory, all hear of. A result that is cached on some ranks
    only is computed again on all. A metric with `process_group` is computed by the ranks of that group; the others call
    this, too, and get None.

    `what` names it in messages, the name of its class when it is empty. `uneven` allows ranks that have updated it a
    different number of times, as they do where the batches do not divide by the ranks; one without any data may be
    among them. `limit` is in seconds, for the gathering too: that of a barrier when it is None.

    `local` is for data that is rank 0's alone: nothing is gathered and nobody is waited for. Rank 0 gets the value,
    any other rank None at once; `decide(lambda: float(compute(metric, local=True)), what)` tells the others, too.

    Without a process group it is `metric.compute()`. Raises on every rank that has come:
    RanksMissing (who did not come, or was lost while the states were gathered), RanksDisagree (they are at different
    places, hold different metrics or have updated them differently), InputError (no metric; states on a device that
    the process group cannot gather, such as the CPU under NCCL), DeadlineExceeded (all are here, but the limit was too
    short for their states); and what the metric itself raises, on the other ranks as RankFailed.
    """
    what = what or type(metric).__name__
    group = peers.ranks()
    if local:
        return _local(metric, what, 0 if group is None else group.rank)
    if group is None:
        return metric.compute()
    limit = limits.current().wait.barrier if limit is None else limit
    return _over_ranks(metric, what, uneven, limit, epoch, step)


def _local(metric: Any, what: str, rank: int) -> Any:
    parts = torchmetric.parts_of(metric, what)
    if rank:
        if any(part.update_called for part in parts):
            logger.warning("rank %d has updated %r, and its data is not in the local value of rank 0", rank, what)
        return None
    with torchmetric.alone(parts):
        return metric.compute()


def _over_ranks(metric: Any, what: str, uneven: bool, limit: float | None, epoch: int | None, step: int | None) -> Any:
    wrong: Exception | None = None
    try:
        parts = torchmetric.parts_of(metric, what)
        group = torchmetric.group_of(parts, what)
        mine, backends = _held(parts, group)
        own = mine.to_bytes(PAYLOAD)
    except Exception as error:  # noqa: BLE001  (raised below, once all ranks have heard of it)
        wrong, own = error, _WRONG + failure(error)
    came = meet(_KIND, what, payload=own, limit=limit, epoch=epoch, step=step)
    if wrong is not None:
        raise wrong
    hear([said[len(_WRONG) :] if said.startswith(_WRONG) else b"" for said in came], what)
    everyone = {rank: Held.from_bytes(said) for rank, said in enumerate(came)}
    inside = {rank: one for rank, one in everyone.items() if not one.outside}
    plan = agree(what, inside, uneven=uneven, carries=backends)
    if some := only_some(inside):
        logger.info("%r: computed already on rank %s only, so all compute it again", what, ", ".join(map(str, some)))
    if not any(plan.again):
        return None if mine.outside else metric.compute()
    gathering = Gathering(limit)
    with torchmetric.gathered([] if mine.outside else parts, plan, gathering) as gather:
        _gather(None if mine.outside else gather, gathering, group, what, limit)
        with together(what, step=step, limit=limit):
            value = None if mine.outside else metric.compute()
    return value


def _held(parts: list[Any], group: Any) -> tuple[Held, str]:
    """Return what this rank holds, and the backends of the group in which it is gathered."""
    ranks = () if group is None else members(group)
    if group is not None and not ranks:
        return Held(updates="", cached=(), structure="", lists=(), words="", outside=True), ""
    devices, backends = carried(group)
    return torchmetric.held(parts, devices, ranks), backends


def _gather(
    gather: Callable[[], None] | None, gathering: Gathering, group: Any, what: str, limit: float | None
) -> None:
    """Gather on all ranks or raise on all; torch's own errors do not say whom they waited for."""
    wrong: Exception | None = None
    if gather is not None:
        with noted(_GATHERING, what), bounded(group, limit):
            try:
                gather()
            except Exception as error:  # noqa: BLE001  (the others hear of it below, and then it is raised)
                wrong = error
    left = gathering.left()
    said = b"" if wrong is None else failure(wrong)
    wait = None if left is None else max(left, _NAMING)
    try:
        came = meet(_GATHERED, what, payload=said, limit=wait)
    except RanksMissing as missing:
        seconds = None if missing.seconds is None else limit
        named = f"the gathering of {what!r} (rank {', '.join(map(str, missing.ranks))} was lost)"
        raise RanksMissing(named, seconds, missing.ranks, missing.doing) from wrong
    if isinstance(wrong, RuntimeError) and not left and limit is not None:
        raise DeadlineExceeded(f"the gathering of {what!r}", limit, _SLOW, "barrier") from wrong
    if wrong is not None:
        raise wrong
    hear(came, what)
