"""Verbs that read and harden source code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from fluxguard.cli import printing, rendering
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson
from fluxguard.cli.verbs import app

_FILES_A_PICTURE = 8


@app.command("apply-patches")
def apply_patches(
    checkout: Annotated[
        Path, typer.Argument(help="An sd-scripts checkout, or a FluxGym around it.", show_default=False)
    ],
    to: Annotated[Path | None, typer.Option(help="Harden a copy there instead of the checkout itself.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if anything is unguarded.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Change nothing; print what hardening changes.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Take the hardening back, byte for byte.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Go on when a required rule finds no site.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Apply this rule alone; repeatable.")] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="ID", help="Leave this rule out; repeatable.")] = None,
    fluxgym: Annotated[
        bool | None, typer.Option("--fluxgym/--no-fluxgym", help="Harden FluxGym's own page too.", show_default="ask")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Harden a checkout: waits bounded, states durable, resume exact."""
    from fluxguard.patching import asking

    given = {"--to": to, "--check": check, "--diff": diff, "--revert": revert, "--partial": partial, "--only": only}
    given |= {"--skip": skip, "--json": as_json, "--fluxgym": fluxgym}
    asking.refuse_contradictions(given, only or (), skip or ())
    places = asking.places(checkout, page=False if to else fluxgym)
    if places.offer and not (check or diff or revert or as_json) and _accepts():
        places = asking.places(checkout, page=True)
    with _searching() as progress:
        job = asking.Job(tuple(only or ()), tuple(skip or ()), partial, to, progress)
        if diff:
            sys.stdout.buffer.write(b"".join(job.diff(place) for place in places.wanted))
            end(GOOD)
        if revert:
            answers = [job.revert(place) for place in (places.wanted if fluxgym is False else places.all)]
        else:
            answers = [(job.check if check else job.apply)(place) for place in places.wanted]
    if as_json:
        printing.as_json(asking.to_mapping(answers))
    else:
        printing.show(rendering.hardening(answers))
        if places.offer and not revert:
            printing.line(places.offer)
    end(GOOD if all(answer.good for answer in answers) else BAD)


@contextlib.contextmanager
def _searching() -> Iterator[Callable[[int, int], None]]:
    """Show how many files have been searched, where somebody looks; yields what is to be told."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Without a thread of its own: searching forks, which a process with threads must not.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as shown:
        task = shown.add_task("searching", total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of, refresh=done % _FILES_A_PICTURE == 0)


def _accepts() -> bool:
    """Ask on a terminal, before anything is changed."""
    return (
        sys.stdin.isatty()
        and sys.stdout.isatty()
        and typer.confirm("Harden FluxGym's own page (app.py) too?", default=False)
    )


@app.command()
def scan(
    folder: Annotated[Path, typer.Argument(help="Any training repository.", show_default=False)],
    as_json: AsJson = False,
    path: Annotated[str, typer.Option(help="`lora`: only where a FLUX LoRA training may come.")] = "all",
    explain: Annotated[bool, typer.Option("--explain", help="Show what to write instead, by kind.")] = False,
) -> None:
    """List what may wait for ever, what only some ranks come to, and what is set up wrong. Exit code 1 if any."""
    from fluxguard.patching import scanning

    found = scanning.scan(folder, path=path)
    if as_json:
        printing.as_json(found.to_mapping())
    else:
        printing.show(rendering.scan(found, explain=explain))
    end(BAD if found.findings else GOOD)
