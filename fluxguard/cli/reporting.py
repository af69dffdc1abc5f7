"""Verbs that explain a run to somebody: its incidents, and an archive to send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import GOOD, end
from fluxguard.cli.options import AsJson, OneNode, OutputDir, one_run
from fluxguard.cli.verbs import app
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir, write_whole

if TYPE_CHECKING:
    from fluxguard.supervisor.incidents.incident import Incident

_ALL = "all"


@app.command("incident")
def incident_(
    output_dir: OutputDir,
    number: Annotated[
        str, typer.Argument(metavar="[N]", help="Which one; `all` lists them.", show_default="the newest")
    ] = "",
    html: Annotated[Path | None, typer.Option(help="Write it as one page with a timeline picture instead.")] = None,
    as_json: AsJson = False,
    node: OneNode = None,
) -> None:
    """Show what happened in an incident: the cause, the proof, what was done and why."""
    from fluxguard.supervisor.incidents import incident as incidents
    from fluxguard.supervisor.incidents import markdown, page

    run = one_run(output_dir, node)
    if not run.ledger.exists():
        raise InputError(output_dir, "holds no run of fluxguard")
    if number == _ALL:
        _list(run, as_json=as_json)
        end(GOOD)
    chosen = _chosen(run, number)
    if chosen is None:
        printing.as_json(None) if as_json else _none(run)
        end(GOOD)
    folder = incidents.folder_for(run, chosen)
    found = incidents.read(folder / incidents.REPORT)
    if found is None:
        raise InputError(folder / incidents.REPORT, "cannot be read")
    if html is not None:
        _write(html, page.render(found, page.beside(folder, found)).encode())
        printing.line(f"written: {html}")
    if as_json:
        printing.as_json(incidents.to_mapping(found))
    elif html is None:
        printing.line(markdown.of(found))


def _chosen(run: RunDir, number: str) -> int | None:
    from fluxguard.supervisor.incidents import incident as incidents

    known = incidents.numbers(run)
    if not number:
        return known[-1] if known else None
    if not number.isdecimal() or int(number) not in known:
        there = f"{known[0]} to {known[-1]}" if known else "none"
        raise InputError("incident", f"{number} is not one of this run (there: {there})")
    return int(number)


def _list(run: RunDir, *, as_json: bool) -> None:
    from fluxguard.supervisor.incidents import incident as incidents

    found = [
        one
        for number in incidents.numbers(run)
        if (one := incidents.read(incidents.folder_for(run, number) / incidents.REPORT))
    ]
    if as_json:
        printing.as_json([incidents.to_mapping(one) for one in found])
        return
    for one in found:
        printing.line(_line(one))
    if not found:
        _none(run)


def _none(run: RunDir) -> None:
    """Say that there was no incident, and what the ranks' own agent has put right instead."""
    from fluxguard.supervisor import ledger, restarted

    printing.line("there was no incident")
    for line in restarted.words(ledger.read(run.ledger)):
        printing.line(line)


def _line(one: Incident) -> str:
    from fluxguard.supervisor.incidents.texts import plain

    return plain(f"{one.number:>4}  {one.when}  step {one.step}  {one.cause}  ({one.went_on})")


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a disk that is full leaves no part of it, and an older one as it was."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or a terminal
        else:
            write_whole(path.resolve(), data)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None


@app.command()
def report(
    output_dir: OutputDir,
    to: Annotated[Path | None, typer.Option(help="The archive.", show_default="fluxguard-report-NAME.zip here")] = None,
    as_json: AsJson = False,
    node: OneNode = None,
) -> None:
    """Pack what explains a run into one archive, without secrets, to attach to an issue.

    Look into it before you send it. No weights, images, states or prompts are in it.
    """
    from fluxguard.supervisor.incidents import archive

    run = one_run(output_dir, node)
    name = "-".join(filter(None, (run.output_dir.name, run.node)))
    target = to or Path(f"fluxguard-report-{name}.zip")
    packed = archive.pack(run, os.environ)
    _write(target, packed.data)
    if as_json:
        printing.as_json(
            {"archive": str(target), "bytes": len(packed.data), "files": packed.sizes, "left_out": packed.left_out}
        )
        return
    printing.line(f"{target} ({len(packed.data) / 1000:.0f} kB) holds:")
    for name, size in packed.sizes.items():
        printing.line(f"{size:>10,}  {name}")
    for name, why in packed.left_out.items():
        printing.line(f"left out: {name} ({why})")
    printing.line("Secrets that are known or look like one were replaced by ***, your home folder by ~.")
    printing.line("Look into it before you send it; issue.md in it is ready to be pasted into an issue.")
