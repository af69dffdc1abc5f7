"""The only place that prints: lines, tables, JSON, and a screen shared with somebody else's bytes."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxguard.supervisor.ledger import Event


def line(text: str) -> None:
    """Print a line as it is, at once."""
    print(text, flush=True)


def line_at(at: float, text: str) -> None:
    """Print a line behind the time of day that `at` (seconds since the epoch) was."""
    line(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}")


def error(text: str) -> None:
    """Print a line of ours where errors go."""
    print(f"fluxguard: {text}", file=sys.stderr)


def as_json(values: Any) -> None:
    """Print values for scripts. Raises ValueError for what is not a number, which JSON does not know."""
    print(json.dumps(values, indent=2, allow_nan=False))


def show(shown: Iterable[Any]) -> None:
    """Print lines of text and tables."""
    from rich.console import Console

    console = Console()
    for one in shown:
        if isinstance(one, str):
            print(one)  # as it is: a console would fold it
        else:
            console.print(one)


class Screen:
    """Standard output for somebody else's bytes and our own lines, each of which begins a line."""

    def __init__(self) -> None:
        self._fresh_line = True

    def show(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self._fresh_line = data.endswith(b"\n")

    def line(self, text: str) -> None:
        self.show(("" if self._fresh_line else "\n").encode() + f"{text}\n".encode())

    def tell(self, event: Event) -> None:
        from fluxguard.supervisor.showing.telling import text

        said = text(event)
        if said is not None:
            self.line(f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {said}")


def is_terminal() -> bool:
    """Return whether standard output is a terminal on which lines can be drawn again."""
    from rich.console import Console

    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


@contextlib.contextmanager
def screen() -> Iterator[tuple[Callable[[Any], None], Callable[[], int]]]:
    """Give what draws something over the whole terminal, again and again, and what says how many rows there are."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda shown: live.update(shown, refresh=True), lambda: console.size.height
