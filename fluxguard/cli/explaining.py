"""The verb that explains any log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson
from fluxguard.cli.verbs import app

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.explaining import Explanation


@app.command()
def explain(
    log_or_dir: Annotated[
        Path, typer.Argument(metavar="LOG_OR_DIR", help="Any trainer's log, or the output folder of a run.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say why a training ended: cause, proof, and what to do. Exit code 1 when nothing says why."""
    from fluxguard.supervisor.causes import explaining

    found = explaining.explain(log_or_dir)
    if as_json:
        printing.as_json(found.to_mapping())
    else:
        printing.show(_shown(found))
    end(BAD if found.verdict == explaining.NOTHING else GOOD)


def _shown(found: Explanation) -> list[str]:
    head = f"{found.cause} ({'certain' if found.sure else 'likely'})" if found.cause else found.verdict
    return [
        f"{found.source}: {head}",
        found.words,
        *(f"  {_place(quote.line)}{quote.text}" for quote in found.proof),
        *([f"What to do: {found.advice}"] if found.advice else []),
    ]


def _place(line: int | None) -> str:
    return "" if line is None else f"line {line}: "
