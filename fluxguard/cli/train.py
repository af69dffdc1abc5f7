"""Verbs that train: supervise a run, stop it."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fluxguard.cli import notify as telling
from fluxguard.cli import options, printing
from fluxguard.cli.exits import BAD, GOOD, OURS, end
from fluxguard.cli.options import OutputDir
from fluxguard.cli.verbs import app
from fluxguard.clock import SystemClock
from fluxguard.errors import FluxguardError
from fluxguard.rundir import RunDir

if TYPE_CHECKING:
    from fluxguard.supervisor.learning import Chosen
    from fluxguard.supervisor.ledger import Event
    from fluxguard.supervisor.messages.posting import Postbox
    from fluxguard.supervisor.order import Order
    from fluxguard.supervisor.supervise import Outcome


@app.command()
def supervise(
    command: options.Command = None,
    output_dir: options.SavesIn = None,
    cwd: options.Cwd = None,
    python: options.Python = None,
    max_restarts: options.MaxRestarts = None,
    limits: options.LimitsFile = None,
    harden: options.Harden = True,
    fresh: options.Fresh = False,
    replace: options.Replace = False,
    follow: options.Follow = False,
    watch_log: options.WatchLog = None,
    notify: telling.Notify = None,
    notify_on: telling.NotifyOn = telling.Level.incidents,
    weights: options.Weights = None,
    node: options.Node = None,
    debug_distributed: options.DebugDistributed = False,
    dry_run: options.DryRun = False,
    check: options.Check = False,
) -> None:
    """Train under supervision: watch, explain, resume, until it is finished and verified.

    Run it again to go on: a living training is adopted, a stopped one resumed, a finished one left alone.
    Ctrl-C only detaches: the run goes on, and so does its supervision.
    """
    from fluxguard import patching
    from fluxguard.supervisor import order as orders
    from fluxguard.supervisor.showing import following

    told = telling.urls(notify)
    words = tuple(command or ())
    notes: list[str] = []
    orders.refuse_script_and_more(words, output_dir)

    def ordered(anew: bool) -> orders.Order:
        choose = _trained_in(anew, notes) if harden and not check else lambda checkout, _: checkout
        home = orders.Home(lambda checkout: patching.is_hardened(checkout, by_us=False), choose)
        if len(words) == 1 and output_dir is None:
            return orders.from_script(Path(words[0]), python=python, home=home, cwd=cwd)
        return orders.from_command(
            words, output_dir=output_dir, cwd=cwd, python=python, home=home, weights=weights, notes=notes
        )

    order = ordered(fresh).watching(watch_log).on(node)
    if replace and following.changed(order):
        order, fresh = ordered(True).watching(watch_log).on(node), True
    chosen = orders.read_limits(limits, hardened=order.hardened, max_restarts=max_restarts)
    if check:
        printing.line(_can_be(order))
        end(GOOD)
    notes += filter(None, [_alone(order)])
    if debug_distributed:
        notes.append(_debugged(order.run, follow=follow))
    if follow:
        end(_follow(order.run, telling.without_urls(orders.without(sys.argv[1:], "--follow")), notes))
    postbox = telling.postbox(order, told, notify_on, notes)
    outcome = _to_its_end(order, chosen, fresh, notes, postbox, dry_run, debug_distributed)
    printing.line(_detached(order.run) if outcome.left else outcome.reason)
    end(GOOD if outcome.finished or outcome.left else BAD)


def _to_its_end(
    order: Order, chosen: Chosen, fresh: bool, notes: list[str], postbox: Postbox | None, dry_run: bool, debug: bool
) -> Outcome:
    """Supervise here; what tells people is given time for its last message."""
    from fluxguard.supervisor import foreground
    from fluxguard.supervisor import order as orders

    again = telling.without_urls(orders.without(sys.argv[1:], "--fresh", "--replace", "--debug-distributed"))
    again = orders.without_values(again, "--watch-log")  # the run has a copy of its own
    with postbox or contextlib.nullcontext():
        tell = _Teller(notes).tell
        outcome = foreground.supervise(
            order, chosen, fresh=fresh, tell=tell, again=again, postbox=postbox, dry_run=dry_run, debug=debug
        )
        if postbox is not None and not outcome.left:
            postbox.close()
    return outcome


def _alone(order: Order) -> str:
    from fluxguard.supervisor import debugging

    return debugging.alone(order.trainee.ranks)


def _debugged(run: RunDir, *, follow: bool) -> str:
    """Return what --debug-distributed does; of a run that is supervised already it is asked here, and nothing else."""
    from fluxguard.supervisor import debugging
    from fluxguard.supervisor.ownership import owner

    if owner(run) is not None:
        debugging.ask(run)
        if not follow:
            where = shlex.quote(str(run.output_dir))
            printing.line(f"{debugging.NEXT}. To have it now: fluxguard stop {where}, and then this command again")
            end(GOOD)
    return debugging.NEXT


def _can_be(order: Order) -> str:
    where = f"{order.run.output_dir}{f' on {order.run.node}' if order.run.node else ''}"
    return f"can be supervised: {order.trainee.argv[0]} trains {order.job.checkout} into {where}"


def _detached(run: RunDir) -> str:
    where = f"{shlex.quote(str(run.output_dir))}{f' --node {run.node}' if run.node else ''}"
    return f"detached; the run goes on. To stop it: fluxguard stop {where}"


def _follow(run: RunDir, arguments: list[str], notes: Sequence[str]) -> int:
    from fluxguard.supervisor.showing import following

    screen = printing.Screen()
    for note in notes:
        screen.line(note)
    try:
        ended = following.follow(run, arguments, SystemClock(), show=screen.show, tell=screen.tell)
        screen.line(ended.reason)
    except KeyboardInterrupt:
        screen.line(_detached(run))
        return GOOD
    except BrokenPipeError:
        # Nobody reads any more, and what Python still wants to write at its end goes there too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    return ended.code if ended.code >= 0 else OURS


def _trained_in(anew: bool, notes: list[str]) -> Callable[[Path, Path | None], Path]:
    """Return what chooses the checkout to train in and notes why; a run that begins `anew` keeps to no earlier copy."""

    def choose(checkout: Path, used: Path | None) -> Path:
        from fluxguard import patching

        chosen = patching.to_train_in(checkout, None if anew else used)
        notes[:] = chosen.said
        return chosen.checkout

    return choose


class _Teller:
    """Tells the events of a run; before the first one, what is to be known of the trainer."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def tell(self, event: Event) -> None:
        from fluxguard.supervisor.showing.telling import text

        while self._notes:
            printing.line_at(event.at, self._notes.pop(0))
        said = text(event)
        if said is not None:
            printing.line_at(event.at, said)


@app.command()
def stop(output_dir: OutputDir, node: options.OneNode = None) -> None:
    """Stop a run, on all machines that share the folder; it can be resumed by `fluxguard supervise`."""
    from fluxguard.supervisor import stopping

    runs = options.runs(output_dir, node)
    failed: FluxguardError | None = None
    for run, said in stopping.stop_all(runs, SystemClock()):
        if isinstance(said, str):
            printing.line(f"{run.node}: {said}" if run.node else said)
        elif len(runs) == 1:
            raise said
        else:
            failed = said
            printing.error(f"{run.node}: {said}")
    if failed is not None:
        end(BAD)
