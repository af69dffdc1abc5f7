"""Starting a run: what was typed is checked here, in words for the field; its supervisor outlives the page."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch import masking, trainsh
from fluxguard.patching import is_hardened
from fluxguard.rundir import RunDir
from fluxguard.supervisor import foreground
from fluxguard.supervisor import order as orders
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.showing import status

from .runs import Run

SUPERVISOR_LOG = "supervisor.log"
DEMO = Path("outputs") / "demo"
DEMO_EPOCHS = 30
DEMO_FLAGS = ("--save_every_n_steps", "20", "--save_every_n_epochs", "10")
_SAID = 16 << 10  # of supervisor.log, the end


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A train.sh that can be supervised."""

    train_sh: Path
    run: RunDir
    argv: tuple[str, ...]
    """The command as it may be shown."""
    cwd: Path
    interpreter: Path
    hardened: bool


def check(typed: str) -> Checked:
    """Read the train.sh at a path; nothing is executed. Raises InputError in words for who typed it."""
    text = typed.strip().strip("'\"")
    if not text:
        raise InputError("path", "Give the path of a train.sh on this computer.")
    path = Path(text).expanduser()
    path = path / "train.sh" if path.is_dir() else path
    if not path.is_file():
        raise InputError("path", f"There is no file {path}.")
    path = path.absolute()
    order = orders.from_script(path, python=None, home=orders.Home(is_hardened))
    argv = tuple(masking.mask(word, secrets(path)) for word in order.job.argv)
    return Checked(
        train_sh=path,
        run=order.run,
        argv=argv,
        cwd=order.job.cwd,
        interpreter=order.job.interpreter,
        hardened=order.hardened,
    )


def secrets(train_sh: Path) -> frozenset[str]:
    """Return the secret values that a run of this script has; of a script that is gone, those of our environment."""
    try:
        script = trainsh.parse(train_sh, os.environ)
    except InputError:
        return masking.secrets_of((), os.environ)
    return masking.secrets_of(script.argv, os.environ, script.env)


def demo() -> Path:
    """Make a demo that has not run yet and return its train.sh. Raises OSError and PatchError."""
    from fluxguard.drill import workshop

    number = 1
    while (DEMO / f"run-{number}").exists():
        number += 1
    made = workshop.prepare(DEMO, name=f"run-{number}", epochs=DEMO_EPOCHS, flags=DEMO_FLAGS)
    return made.train_sh


def supervise(train_sh: Path, run: RunDir, *, fresh: bool = False) -> Run:
    """Start a supervisor that outlives this process. Raises OSError."""
    log = run.root / SUPERVISOR_LOG
    log_from = log.stat().st_size if log.exists() else 0
    at = time.time()
    # With the absolute path: whoever resumes this run from another folder means the same script.
    pid = foreground.detached(run, ["supervise", str(train_sh), *(["--fresh"] if fresh else [])], cwd=Path.cwd())
    identity = Identity.of(pid)
    return Run(
        output_dir=str(run.output_dir),
        train_sh=str(train_sh),
        started_at=at,
        pid=pid,
        pid_started=identity.started if identity else 0.0,
        log_from=log_from,
    )


def said(run: RunDir, log_from: int) -> str:
    """Return the end of what a supervisor wrote since `log_from`."""
    try:
        with (run.root / SUPERVISOR_LOG).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(log_from if log_from <= size else 0, size - _SAID))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def refuse_running(run: RunDir) -> None:
    """Raise InputError when a supervisor already looks after this run."""
    seen = status.read(run)
    if seen is not None and seen.state == "running" and seen.watched:
        raise InputError(run.output_dir, "This training is already running; it is shown here.")


def shell_lines(argv: Sequence[str]) -> str:
    """Return a command for reading, one flag to a line."""
    lines: list[str] = []
    for word in argv:
        if not lines or word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return "\n  ".join(lines)
