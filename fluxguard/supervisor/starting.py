"""The next attempt is started: with what earlier ones have taught, and what is written down of it."""

from __future__ import annotations

from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import debugging, finish, record, restart
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.sensing import machine
from fluxguard.supervisor.trainee import Trainee


def spawn(run: RunDir, ledger: Ledger, trainee: Trainee, start: Restart, argv: tuple[str, ...]) -> Attempt:
    """Start an attempt by `argv`, which is that of `start`. Raises OSError when the system cannot start it now."""
    before = attempts.last(run, ledger.events)
    remedies = record.remedies(ledger.events)
    argv = restart.otherwise(trainee, argv, [one.name for one in remedies])
    debug = debugging.asked(run)
    attempt = attempts.spawn(
        run,
        ledger,
        argv,
        shown_argv=trainee.masked(argv),
        cwd=trainee.cwd,
        env=debugging.environment(run, trainee.env, argv, trainee.ranks, debug=debug),
        number=before.number + 1 if before else 1,
        start_step=start.step,
        by_itself=start.by_itself,
        state=start.state.path if start.state else None,
        notes=(
            *start.notes,
            *(f"otherwise than the command says: {one.words}" for one in record.net(remedies)),
            *([debugging.NOTE] if debug else []),
        ),
        kills_before=machine.out_of_memory_kills(),
        weights_before=finish.stamp(trainee.weights),
        states_before=None if before else states.stamps(run.output_dir),
    )
    debugging.taken(run)
    return attempt
