"""What `fluxguard watch` shows: a snapshot becomes something to draw, at whatever width. Pure; nothing is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fluxguard.supervisor.showing.durations import said
from fluxguard.supervisor.showing.readings import UNKNOWN, readings

if TYPE_CHECKING:
    from fluxguard.supervisor.showing.snapshot import Snapshot
    from fluxguard.supervisor.showing.status import Status

SHOWN_LINES = 8
_SHOWN_INCIDENTS = 4
_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_PLAIN_LEVELS = "_.-=+*#"
_WIDEST_BAR = 40
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_STYLES = {"running": "bold cyan", "finished": "bold green", "stopped": "bold red"}


class Sparkline:
    """A row of signs, the higher the larger the value; as wide as there is room for."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        levels = _PLAIN_LEVELS if options.ascii_only else _LEVELS
        yield Text(sparkline(self._values, min(options.max_width, _WIDEST_BAR), levels), no_wrap=True)


def sparkline(values: Sequence[float], width: int, levels: str = _LEVELS) -> str:
    """Return at most `width` signs: each the mean of its share of the values, from the lowest level to the highest."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((mean - low) * scale)] for mean in means)


def view(seen: Snapshot, *, lines: int = SHOWN_LINES) -> Any:
    """Return one run to draw; `lines` of the trainer's output at most."""
    rows = Table.grid(Column(no_wrap=True, style="bold"), Column(ratio=1, overflow="fold"), padding=(0, 1), expand=True)
    for name, value in _rows(seen):
        rows.add_row(name, Text(clean(value)) if isinstance(value, str) else value)
    log = [Text(clean(line), no_wrap=True, overflow="ellipsis", style="dim") for line in seen.status.lines[-lines:]]
    return Group(_head(seen), rows, *([Text("last lines of the output", style="bold"), *log] if log and lines else []))


def _head(seen: Snapshot) -> Text:
    status = seen.status
    hardened = {True: "hardened", False: "not hardened", None: ""}[status.hardened]
    rest = ", ".join(filter(None, [f"attempt {status.attempts}" if status.attempts else "", hardened]))
    return Text.assemble((seen.name, "bold"), "  ", (status.state, _STYLES.get(status.state, "")), "  ", rest)


def _rows(seen: Snapshot) -> Iterator[tuple[str, Any]]:
    status = seen.status
    waits = status.next_attempt_at is not None and status.next_attempt_at > seen.at
    after = f"; next attempt in {said((status.next_attempt_at or 0) - seen.at)}" if waits else ""
    yield "why", f"{status.reason}{after}"
    if status.phase is not None:
        yield "phase", _phase(seen)
        yield "limits", _limits(seen)
    yield "steps", _steps(seen)
    if status.state == "running" or seen.pace.now is not None:
        yield "time", _time(seen)
    if seen.losses:
        yield "loss", _loss(seen)
    elif status.loss is not None:
        yield "loss", f"{status.loss:.4g}"
    if status.state == "running":
        yield from readings(seen.point, seen.at)
        yield "next", next_limit(seen)
    if status.ranks:
        yield "ranks", status.ranks
    if status.debugging:
        yield "debugging", status.debugging
    if status.healing:
        yield "healed", status.healing.removeprefix("healed ")
    for trouble in status.troubles:
        yield "trouble", trouble
    yield from _incidents(seen)


def _phase(seen: Snapshot) -> str:
    counted = f", {seen.done} of {seen.of}" if seen.of else ""
    return f"{seen.status.phase} for {UNKNOWN if seen.phase_for is None else said(seen.phase_for)}{counted}"


def _limits(seen: Snapshot) -> str:
    if not seen.limits:
        return UNKNOWN
    return "; ".join(f"{one.name} {said(one.left)} of {said(one.limit)} left" for one in seen.limits)


def _steps(seen: Snapshot) -> Any:
    step, planned = _steps_of(seen.status), seen.status.planned_steps
    lost = seen.status.state == "stopped" and step > seen.status.applied_steps
    saved = ", none of them saved" if lost else ""
    if not planned:
        return f"{step} of {UNKNOWN}{saved}"
    text = Text(f"{step}/{planned} {100 * min(step, planned) // planned} %{saved}", no_wrap=True)
    row = Table.grid(Column(ratio=1), Column(no_wrap=True), padding=(0, 1), expand=True)
    row.add_row(ProgressBar(total=planned, completed=min(step, planned), width=None), text)
    return row


def _steps_of(status: Status) -> int:
    """Return the steps that a run embodies; where nothing was saved, as by most foreign trainers, how far it came."""
    return status.step if status.state == "running" else status.applied_steps or status.step


def _time(seen: Snapshot) -> str:
    left = (
        "" if seen.status.state != "running" else f"{UNKNOWN if seen.eta is None else f'about {said(seen.eta)}'} left; "
    )
    return f"{left}{speed(seen)}"


def speed(seen: Snapshot) -> str:
    """Return how long a step takes by now; what it took at best is told where it matters, as a trouble."""
    pace = seen.pace
    if pace.now is None:
        return f"a step takes {UNKNOWN}"
    return f"a step takes {pace.now:.3g} s"


def _loss(seen: Snapshot) -> Any:
    row = Table.grid(Column(no_wrap=True), Column(ratio=1), padding=(0, 1), expand=True)
    last = seen.status.loss if seen.status.loss is not None else seen.losses[-1]
    row.add_row(Text(f"{last:.4g}"), Sparkline(seen.losses))
    return row


def next_limit(seen: Snapshot) -> str:
    """Return what happens at the limit that is reached first."""
    if not seen.status.watched:
        return "nothing: nobody watches; run `fluxguard supervise` again"
    if not seen.limits:
        return "nothing: no limit runs"
    first = seen.limits[0]
    when = f"in {said(first.left)} at the earliest" if first.left > 0 else "now"
    if seen.dry:
        return f"{when} ({first.name}): it is only told (dry run)"
    ended = "stacks are kept, the attempt is ended, and the next one goes on from the newest state that verifies"
    return f"{when} ({first.name}), if nothing moves: {ended}, else from the beginning"


def _incidents(seen: Snapshot) -> Iterator[tuple[str, str]]:
    incidents = list(enumerate(seen.status.incidents, 1))
    if len(incidents) > _SHOWN_INCIDENTS:
        yield "incidents", f"{len(incidents)}, the last {_SHOWN_INCIDENTS} of them:"
    for number, incident in incidents[-_SHOWN_INCIDENTS:]:
        yield f"incident {number}", f"at step {incident['step']}: {incident['words']}"


def clean(line: str) -> str:
    """Return a line of foreign output without what would move or colour the terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in _ANSI.sub("", line))


def table(seen: Sequence[Snapshot]) -> Any:
    """Return several runs to draw, a line each."""
    columns = [Column(name, no_wrap=True, overflow="ellipsis") for name in ("run", "state", "phase")]
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("steps", "left", "incidents")]
    drawn = Table(*columns, *numbers, box=None, expand=True, padding=(0, 1, 0, 0))
    for one in seen:
        status = one.status
        state = status.state if status.watched or status.state != "running" else "unwatched"
        drawn.add_row(
            Text(clean(one.name)),
            Text(state, style=_STYLES.get(state, "bold yellow")),
            Text(status.phase or ""),
            f"{_steps_of(status)}/{status.planned_steps or '?'}",
            "" if status.state != "running" else UNKNOWN if one.eta is None else said(one.eta),
            str(len(status.incidents)),
        )
    return drawn
