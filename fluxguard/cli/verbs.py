"""The command line's own part: its name, its version, and the table that verbs join."""

from __future__ import annotations

from typing import Annotated

import typer

from fluxguard.cli import printing

app = typer.Typer(
    name="fluxguard",
    help="Every FLUX LoRA training ends finished and verified, or stopped, explained and ready to resume.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        printing.line(f"fluxguard {metadata.version('fluxguard-kit')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""
