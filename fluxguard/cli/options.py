"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutputDir = Annotated[Path, typer.Argument(help="The output folder of the run.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
