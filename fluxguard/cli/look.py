"""Verbs that look at a run and change nothing."""

from __future__ import annotations

from fluxguard.cli import printing, rendering
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson, OutputDir
from fluxguard.cli.verbs import app
from fluxguard.cli.watching import hint
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir


@app.command()
def status(
    output_dir: OutputDir,
    as_json: AsJson = False,
) -> None:
    """Say how a run is: state, step, incidents. Exit code 1 when it is stopped."""
    from fluxguard.supervisor.showing import status as statuses

    seen = statuses.read(RunDir(output_dir))
    if seen is None:
        raise InputError(output_dir, hint(output_dir))
    if as_json:
        printing.as_json(seen.to_mapping())
    else:
        printing.show(rendering.status(seen.to_mapping()))
    end(BAD if seen.state == "stopped" else GOOD)


@app.command("limits")
def show_limits(
    output_dir: OutputDir,
    as_json: AsJson = False,
) -> None:
    """List the limits of a run, and why each is what it is: default, chosen, or learned."""
    from fluxguard.supervisor import remembering

    rows = {row.name: row.to_mapping() for row in remembering.explained(RunDir(output_dir))}
    if as_json:
        printing.as_json(rows)
    else:
        printing.show(rendering.limits(rows))
