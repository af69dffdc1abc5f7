"""From what a user types to what is supervised; what is wrong with it is said here, before anything starts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from fluxguard import limits as limits_file
from fluxguard.errors import InputError
from fluxguard.launch import command, configured, dataset, interpreter, job, masking, remedies, trainsh
from fluxguard.launch.flags import Flags, final_weights
from fluxguard.launch.trainer import Trainer, find, script_index
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, is_node, read_json
from fluxguard.supervisor import learning
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.detecting import patterns
from fluxguard.supervisor.learning import Chosen
from fluxguard.supervisor.trainee import Trainee


@dataclass(frozen=True)
class Home:
    """What the patching room, which this one may not enter, says of a checkout."""

    is_hardened: Callable[[Path], bool]
    """Whether it is hardened."""
    trained_in: Callable[[Path, Path | None], Path] = lambda checkout, _: checkout
    """Returns the checkout that trains, itself or a hardened copy of it, given the one that this run used so far."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A command that can be supervised."""

    job: job.Job
    trainee: Trainee
    run: RunDir
    trained_in: Path
    """The checkout that trains: the job's own, or a hardened copy of it."""
    hardened: bool
    watch_log: Path | None = None
    """A file of log patterns of the user's own, which the run will keep a copy of."""

    def on(self, node: str | None) -> Order:
        """Return it as one machine of several has it, where it is one: `node` names it, else the host does.

        Raises InputError for a name that cannot be one, and for a trainer whose states only one machine may hold.
        """
        if node is None and not (self.trainee.foreign and self.trainee.several):
            return self
        if not self.trainee.foreign:
            raise InputError("--node", "is for a trainer that goes on by itself from a state of all its machines")
        name = socket.gethostname() if node is None else node
        if not is_node(name):
            raise InputError("--node", f"{name!r} can be no name of a machine: letters, digits, dots and dashes")
        return replace(self, run=self.run.at(name))

    def watching(self, path: Path | None) -> Order:
        """Return it with a file of log patterns; None leaves the run those that it has. Raises InputError."""
        if path is None:
            return self
        patterns.read(path)
        return replace(self, watch_log=path)


def from_script(path: Path, *, python: str | None, home: Home, cwd: Path | None = None) -> Order:
    """Read a train.sh (or train.bat). Raises InputError naming the file and the line.

    It runs where its own `cd` says, from `cwd` or from here. FluxGym writes none, and a trainer relative to its own
    root: then the folders above the script are searched for it.
    """
    script = trainsh.parse(path, os.environ)
    here = _folder(cwd)
    return _order(
        script.argv,
        cwd=here / script.cwd if script.cwd else cwd or _where_it_runs(script.argv, here, path.resolve()),
        output_dir=None,
        python=python,
        activate=script.activate,
        exports=script.env,
        source=str(path.resolve()),
        home=home,
    )


def from_command(
    argv: Sequence[str],
    *,
    output_dir: Path | None,
    cwd: Path | None,
    python: str | None,
    home: Home,
    weights: Path | None = None,
    notes: list[str] | None = None,
) -> Order:
    """Take a command as it stands, also of a trainer that is not known, whose final weights are `weights`.

    What is to be said of it is added to `notes`. Raises InputError naming what is wrong with it.
    """
    where = _folder(cwd)
    exports, words = _env_prefix(argv)
    if script_index(words) is None and output_dir is not None:
        from fluxguard.supervisor import foreign

        made = foreign.order(words, output_dir=output_dir, weights=weights, cwd=where, python=python, exports=exports)
        if notes is not None:
            rounds = [foreign.ROUNDS] if made.trainee.elastic else []
            notes[:] = [foreign.NOTE, *rounds, *([foreign.NOTHING_NAMED] if weights is None else [])]
        return made
    if weights is not None:
        raise InputError("--weights", "is for a trainer that fluxguard does not know; where this one saves is known")
    return _order(
        words,
        cwd=where,
        output_dir=output_dir,
        python=python,
        activate=None,
        exports=exports,
        source=job.COMMAND_LINE,
        home=home,
    )


def _folder(cwd: Path | None) -> Path:
    if cwd is not None and not cwd.is_dir():
        raise InputError("--cwd", f"{cwd} is no folder")
    return cwd or Path.cwd()


def _where_it_runs(argv: Sequence[str], here: Path, script: Path) -> Path:
    """Return the first folder, from here and then upwards from the script, in which the trainer is found."""
    index = script_index(argv)
    if index is None:
        return here
    return next((folder for folder in (here, *script.parents) if (folder / argv[index]).is_file()), here)


def _env_prefix(argv: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split `env A=b COMMAND` into what it sets and the command."""
    words = list(argv)
    exports: dict[str, str] = {}
    if words[:1] == ["env"]:
        del words[0]
        while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
            name, _, value = words.pop(0).partition("=")
            exports[name] = value
    return exports, tuple(words)


def _order(
    argv: Sequence[str],
    *,
    cwd: Path,
    output_dir: Path | None,
    python: str | None,
    activate: Path | None,
    exports: Mapping[str, str],
    source: str,
    home: Home,
) -> Order:
    trainer = find(argv, cwd)
    trainer, flags = _with_output_dir(trainer, output_dir)
    flags.check()
    _refuse_own_resume(flags)
    if flags.save_model_as != "safetensors":
        raise InputError("command", "must be safetensors: nothing else can be verified", "--save_model_as")
    if flags.dataset_config is not None:
        dataset.check(flags.dataset_config, trainer.cwd)
    path = os.environ.get("PATH", "").split(os.pathsep)
    prefix = interpreter.own_prefix()
    active = interpreter.active(os.environ, prefix)
    chosen = interpreter.choose(trainer.checkout, python, activate, path, prefix, active)
    env = interpreter.environment(os.environ, exports, prefix, {}, chosen)
    run = RunDir(flags.output_dir)
    runs = _in(home.trained_in(trainer.checkout, _used_so_far(run)), trainer)
    hardened = home.is_hardened(runs.checkout)
    made = job.Job(
        argv=trainer.argv,
        cwd=trainer.cwd,
        interpreter=chosen,
        checkout=trainer.checkout,
        output_dir=flags.output_dir,
        output_name=flags.output_name,
        planned=job.planned(flags),
        env=interpreter.recorded(env),
        secrets=interpreter.references(env),
        source=source,
    )
    trainee = _trainee(runs, flags, chosen, env, hardened=hardened)
    return Order(job=made, trainee=trainee, run=run, trained_in=runs.checkout, hardened=hardened)


def _used_so_far(run: RunDir) -> Path | None:
    """Return the checkout in which a run has trained, so that a `git pull` between two attempts does not reach it."""
    said = (read_json(run.job) or {}).get("trained_in")
    return Path(said) if isinstance(said, str) else None


def _in(checkout: Path, trainer: Trainer) -> Trainer:
    """Return the trainer of another checkout in place of this one."""
    if checkout == trainer.checkout:
        return trainer
    return find(command.relocated(trainer.argv, trainer, checkout), trainer.cwd)


def _with_output_dir(trainer: Trainer, output_dir: Path | None) -> tuple[Trainer, Flags]:
    flags = Flags.of(trainer)
    if output_dir is None:
        return trainer, flags
    wanted = output_dir.absolute()
    if flags.configured("output_dir") or flags.given("output_dir"):
        if flags.output_dir.resolve() != wanted.resolve():
            raise InputError("--output-dir", f"is {wanted}, but the command's own --output_dir is {flags.output_dir}")
        return trainer, flags
    trainer = find((*trainer.argv, "--output_dir", str(wanted)), trainer.cwd)
    return trainer, Flags.of(trainer)


def _refuse_own_resume(flags: Flags) -> None:
    if flags.resume is not None:
        raise InputError(
            "command", "leave it out: fluxguard resumes by itself, from its own verified states", "--resume"
        )


def _trainee(trainer: Trainer, flags: Flags, python: Path, env: Mapping[str, str], *, hardened: bool) -> Trainee:
    argv, _ = command.supervised(trainer, flags, hardened=hardened, timed=hardened and _saves_by_time(trainer))

    def resumed(start: command.StartPoint, plan: Plan) -> tuple[str, ...] | command.Refusal:
        if not hardened and not _knows_initial_step(trainer):
            return command.Refusal(
                "this trainer is too old to be told where to go on (it has no --initial_step); use a newer checkout"
            )
        found = command.resumed(
            argv, trainer, flags, start, hardened=hardened, steps_per_epoch=plan.steps_per_epoch or None
        )
        if isinstance(found, command.Refusal):
            return found
        if not hardened:
            spe, seconds = plan.steps_per_epoch, plan.step_seconds
            found = command.paced(found, flags, step_seconds=seconds, every=plan.save_every, steps_per_epoch=spe)
        return command.interpreted(found, trainer, python)

    run = command.interpreted(argv, trainer, python)
    return Trainee(
        argv=run,
        resumed=resumed,
        masked=masking.masked,
        secrets=masking.secrets_of(run, env) | masking.secrets_in(flags.config_file),
        cwd=trainer.cwd,
        env=env,
        weights=final_weights(flags),
        hardened=hardened,
        accumulation=flags.gradient_accumulation_steps,
        own_cadence=not flags.save_state,
        changed=lambda words, remedy: remedies.changed(words, remedy, flags, most_swapped=_most_swapped(trainer)),
        data=_data(trainer, flags),
        ranks=configured.read(run, env, trainer.cwd),
    )


def _data(trainer: Trainer, flags: Flags) -> tuple[Path, ...]:
    """Return the folders of the images."""
    if flags.dataset_config is not None:
        return dataset.folders(flags.dataset_config, trainer.cwd)
    root = flags.train_data_dir
    return tuple(path for path in root.iterdir() if path.is_dir()) if root is not None and root.is_dir() else ()


def _most_swapped(trainer: Trainer) -> int:
    """Return how many blocks a trainer can swap; 0 for one that trains no FLUX, or is too old to swap any."""
    if trainer.script.name != "flux_train_network.py":
        return 0
    sources = (trainer.script, *sorted((trainer.checkout / "library").glob("*.py")))
    knows = any(b"blocks_to_swap" in path.read_bytes() for path in sources)
    return remedies.FLUX_MOST_SWAPPED if knows else 0


def _saves_by_time(trainer: Trainer) -> bool:
    """Whether a hardened trainer saves states by itself; one that an older fluxguard has hardened does not."""
    sources = (trainer.script, trainer.checkout / "train_network.py")
    return any(path.is_file() and b"fluxguard.save_if_due(" in path.read_bytes() for path in sources)


def _knows_initial_step(trainer: Trainer) -> bool:
    """Whether a trainer has the flags by which an unhardened one resumes; sd-scripts before 0.9 has not."""
    sources = (trainer.script, trainer.checkout / "train_network.py")
    return any(path.is_file() and b"initial_step" in path.read_bytes() for path in sources)


def read_limits(path: Path | None, *, hardened: bool, max_restarts: int | None = None) -> Chosen:
    """Return the limits in a TOML or JSON file over the defaults, which are doubled for a trainer that is not hardened.

    Raises InputError naming the file and the field.
    """
    defaults = Limits() if hardened else Limits().doubled()
    by_option = {}
    if max_restarts is not None:
        defaults, by_option = replace(defaults, max_restarts=max_restarts), {"max_restarts": "--max-restarts"}
    if path is None:
        return Chosen(defaults, by_option)
    try:
        if path.suffix == ".json":
            limits, values = limits_file.read(path, defaults), json.loads(path.read_bytes())
            values.pop("version", None)
        else:
            values = tomlkit.parse(path.read_text("utf-8")).unwrap()
            limits = Limits.from_mapping(values, str(path), defaults)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"cannot be read ({error})", "--limits") from None
    except TOMLKitError as error:
        raise InputError(path, f"is not TOML ({error})", "--limits") from None
    return Chosen(limits, by_option | learning.named(values, "your limits file"))


def refuse_script_and_more(words: Sequence[str], output_dir: Path | None) -> None:
    """Raise InputError for a command line that names nothing to train, or a script and more than that."""
    if not words:
        raise InputError("supervise", "name a train.sh, or a command behind `--`")
    if words[0].endswith((".sh", ".bat")) and (len(words) > 1 or output_dir):
        extra = f"--output-dir {output_dir}" if output_dir else words[1]
        raise InputError("supervise", f"a train script says it all; leave out {extra!r}")


def without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command line without some options of ours; what follows `--` is the trainer's."""
    ours = words.index("--") if "--" in words else len(words)
    return [*(word for word in words[:ours] if word not in options), *words[ours:]]


def without_values(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command line without some options of ours that have a value."""
    ours = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    value = False
    for word in words[:ours]:
        if not value and word.partition("=")[0] not in options:
            kept.append(word)
        value = not value and word in options
    return [*kept, *words[ours:]]
