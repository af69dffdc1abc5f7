"""The verb that shows runs while they go on: it reads files, and touches nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.verbs import app
from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir

if TYPE_CHECKING:
    from fluxguard.supervisor.showing.snapshot import Points, Snapshot

_INTERVAL = 2.0
_SHARE = 10.0
"""A look is followed by a rest this many times as long: a long log must not make the reader a load."""
_LINES_AROUND = 20
"""Rows that are left to everything but the lines of the output."""
_LEAVE = "q"
NO_FOLDER = "there is no such folder"


@app.command()
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="OUTPUT_DIR", help="The output folder of a run, or one that holds several.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show it once. Exit code 1 when a run is stopped.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = _INTERVAL,
) -> None:
    """Show a run, or all runs in a folder, as they go on; q or Ctrl-C leaves, and nothing happens to the run.

    Without a terminal it shows everything once, as with --once.
    """
    runs = Runs(folder)
    seen = runs.look()
    if not seen:
        raise InputError(folder, hint(folder))
    if once or not printing.is_terminal():
        printing.show([runs.drawn(seen)])
        end(BAD if any(one.status.state == "stopped" for one in seen) else GOOD)
    with contextlib.suppress(KeyboardInterrupt):
        _follow(runs, seen, interval)
    printing.show([runs.drawn(runs.look() or seen)])
    end(GOOD)


def hint(folder: Path) -> str:
    """Return why there is nothing to show in a folder, and where there would be."""
    from fluxguard.supervisor.showing import snapshot

    if not folder.exists():
        return NO_FOLDER
    runs = snapshot.runs_in(folder)
    if runs:
        several = f"{len(runs)} runs" if len(runs) > 1 else "1 run"
        return f"holds {several} and is none itself: fluxguard watch {folder} shows them all"
    return (
        "holds no run of fluxguard, and none of its folders does: give the output folder of a run, such as outputs/NAME"
    )


class Runs:
    """One run, or those in the folders of a folder, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = SystemClock()
        self._points: dict[Path, Points] = {}

    def look(self) -> list[Snapshot]:
        """Return what is to be seen now; nothing where no run is."""
        from fluxguard.supervisor.showing import snapshot

        one = self._one(RunDir(self._folder))
        found = [one] if one is not None else [self._one(run) for run in snapshot.runs_in(self._folder)]
        return [each for each in found if each is not None]

    def _one(self, run: RunDir) -> Snapshot | None:
        from fluxguard.supervisor.showing import snapshot

        known = self._points.setdefault(run.root, snapshot.Points(run))
        return snapshot.read(run, self._clock, known)

    def drawn(self, seen: Sequence[Snapshot], lines: int | None = None) -> Any:
        """Return what was seen to draw; `lines` of the output at most."""
        from fluxguard.cli import live

        if len(seen) == 1 and Path(seen[0].status.output_dir) == self._folder.resolve():
            return live.view(seen[0], lines=live.SHOWN_LINES if lines is None else lines)
        return live.table(seen)


def _follow(runs: Runs, seen: Sequence[Snapshot], interval: float) -> None:
    """Show what is new until somebody leaves; a moment in which nothing can be read shows what was read before."""
    from fluxguard.cli.keys import keys

    with keys() as wait, printing.screen() as (draw, height):
        while True:
            draw(runs.drawn(seen, max(0, height() - _LINES_AROUND)))
            began = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # its files are being moved, as --fresh does
                seen = runs.look() or seen
            if wait(max(interval, _SHARE * (time.monotonic() - began))).lower() == _LEAVE:
                return
