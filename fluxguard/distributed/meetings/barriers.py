"""A barrier that names who did not come, and what they do instead."""

from __future__ import annotations

from fluxguard.distributed.meetings import meeting


def barrier(what: str, *, epoch: int | None = None, step: int | None = None, limit: float | None = None) -> None:
    """Wait until every rank has come to the barrier called `what`.

    `limit` is how many seconds a rank may keep the others waiting without a sign of life; by default that of a
    barrier. Raises what `meeting.meet` raises: RanksMissing on every rank that has come, with who is missing and what
    they do instead; RanksDisagree when they came to different places, epochs or steps. Alone it does nothing.
    """
    meeting.meet("barrier", what, epoch=epoch, step=step, limit=limit)
