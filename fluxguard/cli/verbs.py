"""The command line's own part: its name, its version, and the table that verbs join."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fluxguard.cli import printing

PANELS = {
    "Train": ("supervise", "stop", "resume-all", "nodes"),
    "Look at a run": ("status", "watch", "states", "incident", "limits", "explain", "report"),
    "Check several ranks": ("doctor",),
    "Harden a trainer": ("apply-patches", "scan"),
    "Try": ("demo", "app", "notify-test"),
}
"""The verbs, in the order in which a new user needs them."""


class _Group(TyperGroup):
    # Any: whether typer brings a click of its own or takes the one that is installed depends on its version.
    def list_commands(self, ctx: Any) -> list[str]:
        return [verb for verbs in PANELS.values() for verb in verbs]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = next(panel for panel, verbs in PANELS.items() if cmd_name in verbs)
        return command


app = typer.Typer(
    cls=_Group,
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
