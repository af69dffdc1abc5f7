"""Verbs for the first minutes: the demo and the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fluxguard.cli import printing, rendering
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.verbs import app
from fluxguard.clock import SystemClock


@app.command()
def demo(
    fault: Annotated[list[str] | None, typer.Option(help="kill, swap or worker; all three by default.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where it happens.", show_default="outputs/demo-TIME")] = None,
) -> None:
    """Train a miniature, break it on purpose, and see it end as if nothing had happened. No download, no GPU."""
    from fluxguard.drill import drill, faults

    chosen = faults.named(fault or [])
    where = folder or Path("outputs") / time.strftime("demo-%Y%m%d-%H%M%S")
    where.mkdir(parents=True, exist_ok=True)
    result = drill.run(where, chosen, SystemClock(), lambda text: printing.line_at(time.time(), text))
    printing.show(rendering.drill(result))
    end(GOOD if result.passed else BAD)


@app.command("app", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def page(context: typer.Context) -> None:
    """Serve the web page on http://127.0.0.1:7860; the same as `python app/app.py`."""
    from fluxguard.app.app import main as serve

    end(serve(context.args))
