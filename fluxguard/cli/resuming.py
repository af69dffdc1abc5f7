"""The verb that takes up what a reboot interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.verbs import app
from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir


@app.command("resume-all")
def resume_all(
    outputs_dir: Annotated[Path, typer.Argument(help="The folder whose runs are looked at.", show_default=False)],
    parallel: Annotated[int, typer.Option(min=1, help="Trainings at a time: as many as there are GPUs.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Start nothing; say what would be done.")] = False,
) -> None:
    """Take up every run again that a reboot or the death of its supervisor has interrupted.

    Finished and stopped ones are left alone. Exit code 1 when one of them cannot be taken up again or does not finish.
    """
    from fluxguard.supervisor import resuming

    if not outputs_dir.is_dir():
        raise InputError(outputs_dir, "is no folder")
    found = resuming.find(outputs_dir)
    if not found:
        printing.line(f"no run of fluxguard in {outputs_dir}")
    waiting, bad = [], False
    for one in found:
        _say(one.run, f"{one.kind}: {one.words}" if not one.words.startswith(one.kind) else one.words)
        if one.kind != resuming.INTERRUPTED:
            continue
        how = resuming.command(one.run, os.environ)
        if isinstance(how, resuming.Unknown):
            bad = True
            _say(one.run, f"cannot be taken up: {how.reason}")
            continue
        for note in how.notes:
            _say(one.run, note)
        waiting.append((one.run, how))
    if dry_run:
        for run, _ in waiting:
            _say(run, "would be taken up again")
        end(BAD if bad else GOOD)
    try:
        went = resuming.resume(waiting, parallel, SystemClock(), _say)
    except KeyboardInterrupt:
        printing.line("left; the trainings that were started go on, the others were not started")
        end(GOOD)
    end(BAD if bad or any(one.code for one in went) else GOOD)


def _say(run: RunDir, words: str) -> None:
    printing.line(f"{run.output_dir}: {words}")
