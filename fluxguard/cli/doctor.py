"""The verb that checks what a training will run on."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson
from fluxguard.cli.verbs import app
from fluxguard.errors import InputError, SetupFailed

if TYPE_CHECKING:
    from fluxguard.distributed.checks.figures import Report, Row

LINE = "torchrun --nproc-per-node 2 -m fluxguard doctor --distributed"
_ALIGNED = "><<>>>>"
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@app.command()
def doctor(
    distributed: Annotated[
        bool, typer.Option("--distributed", help=f"Check several ranks together, each started so: {LINE}")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check ranks before a training: whether they find each other and add up alike, and how fast each is."""
    if not distributed:
        raise InputError("doctor", f"checks several ranks together so far; start it with `{LINE}`")
    if importlib.util.find_spec("torch") is None:
        raise InputError("doctor --distributed", "needs torch: start it with the Python of the training")
    if not any(os.environ.get(name) for name in _LAUNCHED):
        raise InputError(
            "doctor --distributed", f"has to be started once for each rank: `{LINE}` (or accelerate launch)"
        )
    from fluxguard import distributed as ranks

    try:
        world = ranks.setup()
    except SetupFailed as error:
        printing.error(str(error))
        end(BAD)
    with world:
        report = ranks.preflight()
    if world.main and as_json:
        printing.as_json(report.to_mapping())
    elif world.main:
        printing.show(_shown(report))
    end(GOOD if report.good else BAD)


def _shown(report: Report) -> Iterator[str]:
    rows = [("rank", "host", "device", "link MB/s", "latency ms", "GFLOP/s", "clock ms"), *map(_cells, report.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, _ALIGNED, strict=True)
        yield "  ".join(f"{cell:{align}{width}}" for cell, width, align in cells).rstrip()
    count = len(report.rows)
    if report.bandwidth is not None:
        sums = "right" if report.good else "WRONG"
        yield f"All-reduce over {report.backend}: {sums}, {_mega(report.bandwidth)} MB/s."
    elif count == 1:
        yield "One rank: there is nothing to find, and nobody to wait for."
    yield from report.words()


def _cells(row: Row) -> tuple[str, ...]:
    latency = "-" if row.latency is None else f"{row.latency * 1000:.2f}"
    error = f" +- {row.clock_error * 1000:.1f}" if row.clock_error else ""
    clock = "-" if row.clock is None else f"{row.clock * 1000:+.1f}{error}"
    link = "-" if row.link is None else _mega(row.link)
    return str(row.rank), row.host, row.device, link, latency, f"{row.compute / 1e9:.1f}", clock


def _mega(value: float) -> str:
    return f"{value / 1e6:.0f}"
