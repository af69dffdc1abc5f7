"""Verbs that look at a run and change nothing."""

from __future__ import annotations

from fluxguard.cli import printing, rendering
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson, OneNode, OutputDir, one_run, runs
from fluxguard.cli.verbs import app
from fluxguard.cli.watching import hint
from fluxguard.errors import InputError


@app.command()
def status(
    output_dir: OutputDir,
    as_json: AsJson = False,
    node: OneNode = None,
) -> None:
    """Say how a run is: state, step, incidents; of several machines each. Exit code 1 when one is stopped."""
    from fluxguard.supervisor.showing import status as statuses

    found = [one for run in runs(output_dir, node) if (one := statuses.read(run)) is not None]
    if not found:
        raise InputError(output_dir, hint(output_dir))
    seen = [one.to_mapping() for one in found]
    if as_json:
        printing.as_json(seen[0] if len(seen) == 1 else {"nodes": {one["node"] or "": one for one in seen}})
    else:
        printing.show(rendering.status(seen[0]) if len(seen) == 1 else rendering.nodes(seen))
    end(BAD if any(one.state == "stopped" for one in found) else GOOD)


@app.command("limits")
def show_limits(
    output_dir: OutputDir,
    as_json: AsJson = False,
    node: OneNode = None,
) -> None:
    """List the limits of a run, and why each is what it is: default, chosen, or learned."""
    from fluxguard.supervisor import remembering

    rows = {row.name: row.to_mapping() for row in remembering.explained(one_run(output_dir, node))}
    if as_json:
        printing.as_json(rows)
    else:
        printing.show(rendering.limits(rows))
