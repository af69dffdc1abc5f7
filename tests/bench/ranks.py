"""What it costs ranks to meet, beside what torch has for the same; real gloo processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.measure import MEMORY, Figures, Row, environment, figures_of, named, supervised

WORLDS = (2, 4)
SHARE = 1.3
"""A barrier that names every missing rank on every rank may cost so much more than one that does it on rank 0."""
NOTE = 2.0
FID = 1.25
"""Three meetings, and states that are copied once more, may cost so much more than torchmetrics alone."""


def rows() -> list[Row]:
    """Measure barriers and decisions of two ranks, which have bars, and of four, which are reported."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        env = environment(supervised(Path(name)))
        two, four = (figures_of("ranks_meet", str(world), env=env) for world in WORLDS)
    fid = figures_of("ranks_fid", env=environment({}))
    return [
        Row(
            "barrier of 2 ranks over monitored_barrier",
            two["barrier"] / two["monitored_barrier"],
            "times",
            SHARE,
            peers=_told("monitored_barrier", "barrier", two, four),
        ),
        Row(
            "decide of 2 ranks over broadcast_object_list",
            two["decide"] / two["broadcast_object_list"],
            "times",
            1.0,
            peers=_told("broadcast_object_list", "decide", two, four),
        ),
        Row("note of a collective, of its begin or its end", two["note"], "us", NOTE),
        Row(
            "compute of a FID of 2 ranks over torchmetrics",
            fid["all ranks"] / fid["torchmetrics"],
            "times",
            FID,
            peers=f"({named([*fid.items()], ' s')}; 2048 features of 4000 images a side)",
        ),
    ]


def _told(theirs: str, ours: str, two: Figures, four: Figures) -> str:
    parts = (
        f"{world} ranks: ours {figures[ours]:.0f} ({figures[f'quarter {ours}']:.0f}) us, "
        f"{theirs} {figures[theirs]:.0f} ({figures[f'quarter {theirs}']:.0f}) us"
        for world, figures in zip(WORLDS, (two, four), strict=True)
    )
    return f"({'; '.join(parts)}; median (lower quartile) of {two['calls']:.0f} calls each)"
