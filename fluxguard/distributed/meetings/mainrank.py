"""A region for rank 0 alone, at whose end the others wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fluxguard.distributed.meetings import meeting
from fluxguard.distributed.meetings.hall import hall
from fluxguard.guard import pulse

_KIND = "on_main"
PHASE = "on main"
"""The phase of rank 0 in it."""
_MAIN = 0


@contextlib.contextmanager
def on_main(what: str, *, epoch: int | None = None, step: int | None = None) -> Iterator[bool]:
    """Yield True on rank 0, which alone does what has to be done once, and False elsewhere.

    `with on_main("save") as main: ...`: at its end the others wait for rank 0, while it shows signs of life
    (`fluxguard.progress`, phases), and without any for as long as the phase "on main" may be silent, half an hour;
    one without a heartbeat gets what a barrier allows it. Nothing inside may be a collective: the others would not
    join it.

    What is raised inside on one rank is raised there, and RankFailed on the others. Raises at its end what
    `meeting.meet` raises. Alone it yields True.
    """
    place = hall()
    if place is None:
        yield True
        return
    main = place.rank == _MAIN
    try:
        with pulse.during(PHASE) if main else contextlib.nullcontext():
            yield main
    except BaseException as error:
        meeting.fail(_KIND, what, error, epoch=epoch, step=step)
        raise
    meeting.meet(_KIND, what, epoch=epoch, step=step)
