"""Notifications on the command line: the options of `supervise`, and the verb that sends a test message."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from fluxguard.cli import printing
from fluxguard.cli.exits import BAD, GOOD, end
from fluxguard.cli.verbs import app
from fluxguard.errors import InputError

if TYPE_CHECKING:
    from fluxguard.supervisor.messages.posting import Postbox
    from fluxguard.supervisor.order import Order

_HELP = "A URL of Apprise that is told how the run goes (docs/notify.md); may be repeated. Also: FLUXGUARD_NOTIFY."


class Level(str, Enum):
    """What is told; the values are those of `notifying.LEVELS`."""

    end = "end"
    incidents = "incidents"
    all = "all"


Notify = Annotated[list[str] | None, typer.Option("--notify", metavar="URL", help=_HELP, show_default=False)]
NotifyOn = Annotated[Level, typer.Option("--notify-on", help="The end only, restarts and troubles too, or all.")]


def urls(given: list[str] | None) -> tuple[str, ...]:
    """Return whom to notify, by the option and the environment; from now on the environment holds all of it.

    So the supervisor that takes over from this one knows it too, and no command line does. Raises InputError.
    """
    from fluxguard.supervisor.messages import notifying, posting

    found = notifying.urls(given or (), os.environ.get(notifying.VARIABLE, ""))
    if found:
        posting.check(found)
        os.environ[notifying.VARIABLE] = " ".join(found)
    return found


def postbox(order: Order, found: tuple[str, ...], level: Level, notes: list[str]) -> Postbox | None:
    """Return what tells people of a run, or None when nobody is to be told; a note says so when somebody was before."""
    from fluxguard.clock import SystemClock
    from fluxguard.supervisor.messages import posting

    if not found:
        if posting.was_told(order.run):
            notes.append("nobody is notified from now on: give --notify again, or set FLUXGUARD_NOTIFY")
        return None
    return posting.Postbox(order.run, found, SystemClock(), level=level.value, secrets=order.trainee.secrets)


def without_urls(words: list[str]) -> list[str]:
    """Return the words of a command line without the URLs, which the environment holds by now."""
    from fluxguard.supervisor.messages import notifying

    return notifying.without_urls(words)


@app.command("notify-test")
def notify_test(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="As for `supervise --notify`; else those of FLUXGUARD_NOTIFY."),
    ] = None,
) -> None:
    """Send a test message to each URL. Exit code 1 when one does not take it."""
    from fluxguard.supervisor.messages import notifying, posting

    found = urls(given)
    if not found:
        raise InputError(notifying.VARIABLE, "is not set, and no URL was given")
    results = posting.send(found, [notifying.trial()])
    for result in results:
        printing.line(f"{notifying.shown(result.url)}: {'sent' if result.ok else f'not sent: {result.why}'}")
    end(GOOD if all(result.ok for result in results) else BAD)
