"""A check of the ranks before a training: collectives give the right answers, and how fast each rank is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

from fluxguard import limits
from fluxguard.distributed import bounded, world
from fluxguard.distributed.checks import measuring
from fluxguard.distributed.checks.figures import Report, Row
from fluxguard.distributed.checks.measuring import Measures
from fluxguard.distributed.meetings import meeting
from fluxguard.distributed.start import devices, gate
from fluxguard.errors import DeadlineExceeded, FluxguardError

T = TypeVar("T")

_checks = itertools.count()

_KIND = "preflight"
_NUMBERS = 4_000_000  # 16 MB: more than what hides in buffers, and less than a second on a slow network


def preflight(*, numbers: int = _NUMBERS) -> Report:
    """Measure the ranks of this process's group; every rank calls it and gets the same report.

    All-reduce has to be correct; measured are its latency and bandwidth (of `numbers` 32-bit numbers), each rank's
    links and computing, and how far the clocks of the ranks are apart. Takes a few seconds. In a world of one, only
    computing is measured.

    Raises RanksMissing when a rank does not come to a measurement, and FluxguardError when one does not end within the
    limit of `setup`: the ranks find each other then, and their collectives hang.
    """
    here = world.current()
    store = world.store()
    measures = Measures(here, numbers)
    device = "CPU" if here.device is None else f"GPU {here.device}"
    row = Row(rank=here.rank, host=here.host, device=device, compute=_bounded("computing", measures.compute))
    if here.size == 1 or store is None:
        return Report(rows=(row,), backend=here.backend)
    kept = store
    correct = _together("all-reduce", measures.sums)
    latency = _together("latency", measures.latency)
    bandwidth = _together("bandwidth", measures.bandwidth)
    link = _together("links", measures.link)
    ahead, error = _together("clocks", lambda: measuring.clock(kept, here, f"clock/{next(_checks)}"))
    row = Row(
        **{**vars(row), "correct": correct, "latency": latency, "link": link, "clock": ahead, "clock_error": error}
    )
    told = meeting.meet(_KIND, "the figures of all ranks", payload=row.to_text().encode())
    return Report(rows=tuple(Row.from_text(text) for text in told), backend=here.backend, bandwidth=bandwidth)


def _together(what: str, measure: Callable[[], T]) -> T:
    """Measure when all ranks have come to it: so one that does not come is named, and nothing hangs for it."""
    meeting.meet(_KIND, what)
    return _bounded(what, measure)


def _bounded(what: str, measure: Callable[[], T]) -> T:
    limit, device = limits.current().wait.setup, world.current().device

    def measured() -> T:
        devices.use(device)  # CUDA keeps it for each thread
        return measure()

    try:
        return bounded.within(limit, f"preflight: {what}", measured)
    except DeadlineExceeded as error:
        raise FluxguardError(f"{error}; {gate.HANGS}") from None
    except RuntimeError as error:
        raise FluxguardError(
            f"preflight: {what} failed ({str(error).strip().partition(chr(10))[0]}); {gate.HANGS}"
        ) from error
