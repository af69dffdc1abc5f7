"""The verb that writes the command of each machine of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluxguard.cli import options, printing
from fluxguard.cli.options import AsJson
from fluxguard.cli.verbs import app
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir, is_node, read_json


@app.command()
def nodes(
    on: Annotated[str, typer.Option(metavar="NAME,NAME...", help="The machines; the first holds the rendezvous.")],
    output_dir: Annotated[Path, typer.Option(help="Where COMMAND saves: one folder for all of them, or one on each.")],
    command: options.Command = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks of each machine: one per GPU.", show_default="as COMMAND says")
    ] = None,
    least: Annotated[int | None, typer.Option(help="Go on with so few machines.", show_default="all")] = None,
    endpoint: Annotated[
        str, typer.Option(help="HOST[:PORT] of the rendezvous.", show_default="the first machine")
    ] = "",
    restarts: Annotated[int, typer.Option(min=0, help="Rounds that may fail before a machine gives up.")] = 3,
    interface: Annotated[str, typer.Option(help="The network interface, such as eth0.", show_default="any")] = "",
    accelerate: Annotated[bool, typer.Option("--accelerate", help="By accelerate launch, not torchrun.")] = False,
    python: options.Python = None,
    weights: options.Weights = None,
    as_json: AsJson = False,
) -> None:
    """Write the line that each of several machines needs to train COMMAND together, under supervision.

    Without COMMAND it is that of the run in the output folder. A secret in it is not written: `***` stands there.
    """
    from fluxguard.launch import lines, masking
    from fluxguard.launch.looks import MASK
    from fluxguard.launch.ranks import ACCELERATE, TORCHRUN

    hosts = tuple(name.strip() for name in on.split(",") if name.strip())
    for host in hosts:
        if not is_node(host):
            raise InputError("--on", f"{host!r} can be no name of a machine: letters, digits, dots and dashes")
    machines = lines.Machines(
        hosts=hosts,
        per_node=ranks,
        least=least,
        endpoint=endpoint,
        restarts=restarts,
        interface=interface,
        launcher=ACCELERATE if accelerate else TORCHRUN,
        output_dir=str(output_dir),
    )
    more = [word for name, said in (("--python", python), ("--weights", weights)) if said for word in (name, str(said))]
    given = tuple(command or ()) or _of_the_run(output_dir)
    made = lines.lines(masking.masked(given), machines)
    if any(MASK in word for line in made for word in line.argv):
        printing.error(f"a secret of the command is not written: put it where {MASK} stands")
    if as_json:
        printing.as_json({line.host: {"argv": line.argv, "env": dict(line.env)} for line in made})
        return
    for line in made:
        printing.line(f"# on {line.host}")
        printing.line(line.supervised(str(output_dir), more))


def _of_the_run(output_dir: Path) -> tuple[str, ...]:
    run = RunDir(output_dir)
    found = [one for path in (run.job, *(node.job for node in run.nodes())) if (one := read_json(path))]
    if not found or not isinstance(found[0].get("argv"), list):
        raise InputError("COMMAND", f"is missing, and {output_dir} holds no run whose command it could be")
    return tuple(map(str, found[0]["argv"]))
