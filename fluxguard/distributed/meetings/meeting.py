"""All ranks come together: with what they bring, or with the name of the rank that does not come.

They meet in the store through which they found each other, as `guard.peers` does, not in a collective of a gloo group
beside NCCL. Nothing has to be made on all ranks first; no collective is left pending that keeps the interpreter from
its end; every rank, not rank 0 alone, learns who is missing and what it does instead; and any backend will do.
"""

from __future__ import annotations

import contextlib
import copy

from fluxguard.distributed.meetings.hall import Hall, close, hall
from fluxguard.distributed.meetings.line import StoreGone
from fluxguard.distributed.meetings.records import (
    CAME,
    FAILED,
    OVER,
    PAYLOAD,
    Record,
    failure,
    over,
    payloads,
    trouble,
    unpack,
)
from fluxguard.distributed.meetings.sight import own
from fluxguard.distributed.meetings.waiting import Waiting
from fluxguard.errors import FluxguardError, RankFailed, RanksMissing
from fluxguard.guard import collectives, pulse
from fluxguard.guard.watcher import awake, lost

__all__ = ["PAYLOAD", "close", "fail", "meet"]

_TELLING = 0.3  # what the store may take to be told why it is over


def meet(
    kind: str,
    what: str,
    *,
    payload: bytes = b"",
    limit: float | None = None,
    epoch: int | None = None,
    step: int | None = None,
) -> list[bytes]:
    """Wait until every rank has come here and return what each has brought, by rank.

    All must come with the same `kind`, `what`, `epoch` and `step`. An epoch or step that is None is that of the
    heartbeat; one that a rank does not know is not compared. `payload` is up to PAYLOAD bytes of each rank's own.
    `limit` is how many seconds a rank may keep the others waiting without a sign of life, by default that of a
    barrier. Alone it returns at once.

    Raises on every rank that has come: RanksMissing at the limit, or as soon as the process of a missing rank on this
    machine is dead; RanksDisagree when they came to different places; RankFailed when one came to say that it failed.
    After the first two, every further meeting of this group raises the same at once: the ranks are not together any
    more. Raises ValueError for a payload that is too long, and on the thread of a `fail_after` DeadlineExceeded.
    """
    if len(payload) > PAYLOAD:
        raise ValueError(f"`payload` must not be longer than {PAYLOAD} bytes, and has {len(payload)}")
    place = hall()
    if place is None:
        return [payload]
    with place.lock, collectives.noted(kind, what) as note:
        record = _record(Record(kind=kind, what=what, sequence=note.sequence, payload=payload), epoch, step)
        return _meet(place, record, limit)


def fail(kind: str, what: str, error: BaseException, *, epoch: int | None = None, step: int | None = None) -> None:
    """Come to a meeting to say that this rank has failed: the others raise RankFailed there.

    Waits for them as `meet` does, so that they can hear of it, and raises nothing: what this rank has to say is
    `error`. For one with which the process ends, such as KeyboardInterrupt, it is told and waits for nobody.
    """
    place = hall()
    if place is None:
        return
    with place.lock, collectives.noted(kind, what) as note:
        told = Record(kind=kind, what=what, sequence=note.sequence, status=FAILED, payload=failure(error))
        if place.over is None and not isinstance(error, Exception):
            place.number += 1
            _give_up(place, place.number - 1, told, error, ())
            return
        with contextlib.suppress(FluxguardError):
            _meet(place, _record(told, epoch, step), None)


def _record(record: Record, epoch: int | None, step: int | None) -> Record:
    heart = pulse.heart()
    if heart is not None:  # 0 is what it says before it was told
        epoch = heart.epoch or None if epoch is None else epoch
        step = heart.step or None if step is None else step
    return record._replace(epoch=epoch, step=step)


def _meet(place: Hall, record: Record, limit: float | None) -> list[bytes]:
    if place.over is not None:
        raise copy.copy(place.over)
    number, place.number = place.number, place.number + 1
    if not number:
        record = record._replace(who=own().pack())
    began, slept = awake(), lost()
    waiting = Waiting(place, number, record, limit, began)
    try:
        found = waiting.until_all_are_here(place.come(number, record.pack()))
    except BaseException as error:  # a signal's too: the others must not wait for who will not wait for them
        _give_up(place, number, record, error, waiting.missing)
        raise
    brought = payloads(found, record.common()) if record.status == CAME and number else None
    if brought is None:
        brought = _judged(place, number, record, [unpack(one) for one in found])
    waited = awake() - began
    if waited <= waiting.limit and lost() == slept:  # longer was allowed by what was seen, not by the limit
        pulse.completed("barrier", waited)
    return brought


def _judged(place: Hall, number: int, record: Record, records: list[Record | None]) -> list[bytes]:
    if not number:
        place.met(one.who if one else b"" for one in records)
    error = trouble(records, place.rank)
    if error is None:
        return [one.payload for one in records if one is not None]
    if isinstance(error, RankFailed) and not any(one is not None and one.status == OVER for one in records):
        raise error  # they have met, and may meet again
    place.over = error
    place.leave(number, _over(record, error), error.ranks if isinstance(error, RanksMissing) else ())
    raise copy.copy(error)


def _give_up(place: Hall, number: int, record: Record, error: BaseException, missing: tuple[int, ...]) -> None:
    place.over = (
        error if isinstance(error, FluxguardError) else RankFailed(place.rank, type(error).__name__, str(error))
    )
    with contextlib.suppress(StoreGone):
        place.give_up(number, _over(record, error), missing).within(_TELLING)


def _over(record: Record, error: BaseException) -> bytes:
    return Record(kind=record.kind, what=record.what, sequence=record.sequence, status=OVER, payload=over(error)).pack()
