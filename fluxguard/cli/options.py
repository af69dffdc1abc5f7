"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell: never end or restart the training.")]
Check = Annotated[bool, typer.Option("--check", help="Start nothing; say whether it can be done.")]
