"""Any trainer can be supervised: a command that fluxguard does not know, with the folder that it saves into.

Nothing is hardened and no flag is added. It has no states, so another attempt starts from the beginning; and it is
verified only where the user names its final weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch import command, configured, interpreter, job, masking, ranks
from fluxguard.launch.command import Refusal
from fluxguard.launch.trainer import COMMAND, Trainer, base, is_python
from fluxguard.rundir import RunDir
from fluxguard.supervisor.order import Order
from fluxguard.supervisor.trainee import Trainee

NOTE = "fluxguard does not know this trainer: nothing is hardened, and another attempt starts from the beginning"
ROUNDS = "its agent starts ranks again that fail: ranks that hang are ended one round at a time, and their agent is not"
NOTHING_NAMED = "no --weights are named: that it is finished is known by its exit code alone"
_LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun")


def order(
    argv: Sequence[str],
    *,
    output_dir: Path,
    weights: Path | None,
    cwd: Path,
    python: str | None,
    exports: Mapping[str, str],
) -> Order:
    """Take a command of a trainer that is not known, as it stands. Raises InputError naming what is wrong with it."""
    if not argv:
        raise InputError(COMMAND, "is empty")
    cwd, folder = cwd.absolute(), output_dir.absolute()
    chosen, env = _found(argv[0], cwd, python, exports)
    found = configured.read(argv, env, cwd)
    env = {**ranks.environment(found), **env}
    run = _runnable(tuple(argv), cwd, chosen, env)
    made = job.Job(
        argv=tuple(argv),
        cwd=cwd,
        interpreter=chosen or Path(run[0]),
        checkout=cwd,
        output_dir=folder,
        output_name=None,
        env=interpreter.recorded(env),
        secrets=interpreter.references(env),
    )
    trainee = Trainee(
        argv=run,
        resumed=lambda _start, _plan: Refusal(NOTE),
        masked=masking.masked,
        secrets=masking.secrets_of(run, env),
        cwd=cwd,
        env=env,
        weights=_weights(weights, folder),
        hardened=False,
        accumulation=1,
        own_cadence=False,
        ranks=found,
        foreign=True,
    )
    return Order(job=made, trainee=trainee, run=RunDir(folder), trained_in=cwd, hardened=False)


def _found(first: str, cwd: Path, python: str | None, exports: Mapping[str, str]) -> tuple[Path | None, dict[str, str]]:
    """Return the Python of a command that begins with this word, None where that is not ours to say, and what it sees.

    A program that is found is the one that was meant, with all that is set here, in our own environment too: a loop
    that imports fluxguard has it there. A Python or launcher that is not found is looked for as a known trainer's is.
    """
    env = interpreter.as_typed(os.environ, exports)
    program = interpreter.typed(first, cwd, env.get("PATH"))
    by_launcher = base(first) in _LAUNCHERS
    if python is None and program is not None:
        return program if is_python(first) else interpreter.of_script(program) if by_launcher else None, env
    if python is None and not (is_python(first) or by_launcher):
        return None, env
    prefix = interpreter.own_prefix()
    path = os.environ.get("PATH", "").split(os.pathsep)
    chosen = interpreter.choose(cwd, python, None, path, prefix, interpreter.active(os.environ, prefix))
    return chosen, interpreter.environment(os.environ, exports, prefix, {}, chosen)


def _runnable(argv: tuple[str, ...], cwd: Path, python: Path | None, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with a program that is found."""
    if python is not None:
        argv = command.interpreted(argv, Trainer(argv=argv, index=1, script=cwd, cwd=cwd, launcher=""), python)
    found = interpreter.typed(argv[0], cwd, env.get("PATH"))
    if found is None:
        raise InputError(COMMAND, f"runs {argv[0]}, which is no program in {cwd} or on the PATH")
    return (str(found), *argv[1:])


def _weights(named: Path | None, output_dir: Path) -> Path | None:
    """Return the final weights; a relative name lies in the output folder, also when it is written as from here."""
    if named is None:
        return None
    if named.suffix != ".safetensors":
        raise InputError("--weights", f"{named} is no .safetensors: nothing else can be verified")
    return named.absolute() if named.absolute().is_relative_to(output_dir) else output_dir / named
