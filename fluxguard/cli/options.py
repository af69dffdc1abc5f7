"""Arguments and options that several verbs have."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from fluxguard.errors import InputError
from fluxguard.rundir import RunDir

OutputDir = Annotated[Path, typer.Argument(help="The output folder of the run.", show_default=False)]
WatchLog = Annotated[
    Path | None, typer.Option("--watch-log", help="A YAML file of log patterns of your own (docs/watching.md).")
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRAIN_SH | -- COMMAND...", help="A train.sh, or the training command behind `--`.", show_default=False
    ),
]
SavesIn = Annotated[
    Path | None, typer.Option("--output-dir", help="Where COMMAND saves; needed when it does not say, or is not known.")
]
Cwd = Annotated[Path | None, typer.Option(help="Where COMMAND runs.", show_default="here")]
Python = Annotated[str | None, typer.Option(help="The trainer's Python, or its virtual environment.")]
MaxRestarts = Annotated[int | None, typer.Option(min=0, help="Restarts in a row without progress.")]
LimitsFile = Annotated[Path | None, typer.Option("--limits", help="A TOML or JSON file of limits (docs/limits.md).")]
Harden = Annotated[bool, typer.Option("--harden/--no-harden", help="Train in a hardened copy beside the checkout.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Move earlier outputs aside and begin anew.")]
Replace = Annotated[bool, typer.Option("--replace", help="As --fresh, if the command has changed.")]
Follow = Annotated[bool, typer.Option("--follow", help="Show the trainer's own output as well.")]
Weights = Annotated[
    Path | None, typer.Option(help="What an unknown trainer leaves at its end, in the output folder; then verified.")
]
Node = Annotated[
    str | None,
    typer.Option(help="Which machine this is, of several.", show_default="the host name, where COMMAND has several"),
]
OneNode = Annotated[str | None, typer.Option("--node", help="Which machine, of a run on several.")]
DebugDistributed = Annotated[
    bool, typer.Option("--debug-distributed", help="Let the next attempt tell more of its collectives, on all ranks.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell: never end or restart the training.")]
Check = Annotated[bool, typer.Option("--check", help="Start nothing; say whether it can be done.")]


def runs(output_dir: Path, node: str | None) -> list[RunDir]:
    """Return the run in an output folder; where several machines share it, that of each, or of the one that is named.

    Raises InputError for a machine that has none there.
    """
    alone = RunDir(output_dir)
    found = alone.nodes()
    if node is not None:
        there = ", ".join(run.node for run in found) or "none"
        if not (named := [run for run in found if run.node == node]):
            raise InputError("--node", f"{node} has no run in {output_dir} (there: {there})")
        return named
    return found if found and not alone.ledger.exists() else [alone, *found]


def one_run(output_dir: Path, node: str | None) -> RunDir:
    """Return the one run that is meant: of several machines that of this one, where none is named.

    Raises InputError.
    """
    found = runs(output_dir, node)
    mine = [run for run in found if run.node in ("", socket.gethostname())]
    if len(found) > 1 and not mine:
        raise InputError(output_dir, f"is trained on {', '.join(run.node for run in found)}; name one with --node")
    return found[0] if len(found) == 1 else mine[0]
