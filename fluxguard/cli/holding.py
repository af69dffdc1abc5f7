"""The verb that lists the states of a training and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.options import AsJson, OutputDir
from fluxguard.cli.verbs import app
from fluxguard.cli.watching import NO_FOLDER
from fluxguard.errors import InputError

if TYPE_CHECKING:
    from fluxguard.supervisor.checkpoints.holding import Held, Holding

_ALIGNED = "<>>>><<<"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@app.command("states")
def states(
    output_dir: OutputDir,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file, as a start would.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the states of a training: step, verdict, and which one the next start uses. Exit code 1 when none can be."""
    from fluxguard.supervisor.checkpoints import holding

    if not output_dir.exists():
        raise InputError(output_dir, NO_FOLDER)
    now = time.time()
    found = holding.look(output_dir, now=now, verify=verify)
    if as_json:
        chosen = found.chosen
        printing.as_json(
            {
                "states": [state.to_mapping() for state in found.states],
                "next": str(chosen.path) if chosen else None,
                "finished": found.finished,
                "verified": verify,
            }
        )
    else:
        printing.show(_table(found, output_dir, now))
    end(GOOD if found.usable else BAD)


def _table(found: Holding, output_dir: Path, now: float) -> Iterator[str]:
    # Text and no table of a terminal: the path stands last and whole, however narrow that is.
    root = output_dir.resolve()
    rows: list[tuple[str, ...]] = [("", "step", "epoch", "size", "age", "asked by", "verdict", "state")]
    for state in found.states:
        mark, name = "->" if state.next else "", str(state.path.relative_to(root))
        rows.append((mark, *_figures(state, now), state.asked or "?", state.verdict, name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found.states else []:
        cells = zip(row, widths, _ALIGNED, strict=True)
        yield "  ".join(f"{cell:{align}{width}}" for cell, width, align in cells).rstrip()
    yield from (f"{state.path.relative_to(root)}: {state.reason}" for state in found.states if state.reason)
    yield _next(found)


def _figures(state: Held, now: float) -> tuple[str, ...]:
    step = "?" if state.step is None else str(state.step)
    return step, "?" if state.epoch is None else str(state.epoch), _size(state.size), _age(now - state.at)


def _next(found: Holding) -> str:
    if not found.states:
        return "No state was saved yet."
    if (chosen := found.chosen) and chosen.of_a_loop:
        return f"The next start goes on from step {chosen.step}, where the loop asks `newest_state` of its folder."
    if chosen:
        return f"The next start goes on from step {chosen.step}."
    if found.finished:
        return "The training is finished: nothing is left to go on with."
    if not found.run:
        return "No run of fluxguard: it starts from none of them by itself, and the steps are as their trainer counted."
    return "None of them can be used: the next start begins at step 0, or says why it does not."


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _age(seconds: float) -> str:
    length, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{max(0, seconds) / length:.0f} {unit}"
