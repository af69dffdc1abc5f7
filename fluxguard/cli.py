"""The command line: the only place that prints. Exit codes: 0 good, 1 a bad answer, 2 your input, 3 our own failure."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fluxguard import rendering
from fluxguard.clock import SystemClock
from fluxguard.errors import FluxguardError, InputError
from fluxguard.rundir import RunDir

if TYPE_CHECKING:
    from fluxguard.supervisor.ledger import Event

GOOD, BAD, INPUT, OURS = 0, 1, 2, 3
_FILES_A_PICTURE = 8

app = typer.Typer(
    name="fluxguard",
    help="Every FLUX LoRA training ends finished and verified, or stopped, explained and ready to resume.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"fluxguard {metadata.version('fluxguard-kit')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


OutputDir = Annotated[Path, typer.Argument(help="The output folder of the run.", show_default=False)]


def main() -> None:
    """Run the command line; whatever goes wrong is one line and a code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end anything
    try:
        app()
    except InputError as error:
        code = _say(INPUT, str(error))
    except FluxguardError as error:
        code = _say(BAD, str(error))
    except OSError as error:
        code = _say(*_os_error(error))
    except Exception as error:  # noqa: BLE001 - the last word of the command line: our own failure is said and coded
        code = _say(OURS, f"fluxguard itself failed ({type(error).__name__}: {error}); please report this")
    else:
        code = GOOD
    sys.exit(code)


def _os_error(error: OSError) -> tuple[int, str]:
    if error.errno == errno.ENOSPC:
        return BAD, "the disk is full; free some space and give the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return INPUT, f"{error.filename}: cannot be written ({error.strerror}); nothing was changed"
    return OURS, f"failed ({error})"


def _say(code: int, text: str) -> int:
    print(f"fluxguard: {text}", file=sys.stderr)
    return code


def _show(shown: Iterable[Any]) -> None:
    """Print lines of text and tables."""
    from rich.console import Console

    console = Console()
    for one in shown:
        if isinstance(one, str):
            print(one)  # as it is: a console would fold it
        else:
            console.print(one)


def _end(code: int) -> NoReturn:
    raise typer.Exit(code)


@app.command()
def supervise(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRAIN_SH | -- COMMAND...",
            help="A train.sh, or the training command behind `--`.",
            show_default=False,
        ),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where COMMAND saves; needed when it does not say.")] = None,
    cwd: Annotated[Path | None, typer.Option(help="Where COMMAND runs.", show_default="here")] = None,
    python: Annotated[str | None, typer.Option(help="The trainer's Python, or its virtual environment.")] = None,
    max_restarts: Annotated[int | None, typer.Option(min=0, help="Restarts in a row without progress.")] = None,
    limits: Annotated[Path | None, typer.Option(help="A TOML or JSON file of limits (docs/limits.md).")] = None,
    harden: Annotated[
        bool, typer.Option("--harden/--no-harden", help="Train in a hardened copy beside the checkout.")
    ] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move earlier outputs aside and begin anew.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="As --fresh, if the command has changed.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the trainer's own output as well.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Start nothing; say whether it can be done.")] = False,
) -> None:
    """Train under supervision: watch, explain, resume, until it is finished and verified.

    Run it again to go on: a living training is adopted, a stopped one resumed, a finished one left alone.
    Ctrl-C only detaches: the run goes on, and so does its supervision.
    """
    from fluxguard import patching
    from fluxguard.supervisor import following, foreground
    from fluxguard.supervisor import order as orders

    words = tuple(command or ())
    notes: list[str] = []
    orders.refuse_script_and_more(words, output_dir)

    def ordered(anew: bool) -> orders.Order:
        choose = _trained_in(anew, notes) if harden and not check else lambda checkout, _: checkout
        home = orders.Home(lambda checkout: patching.is_hardened(checkout, by_us=False), choose)
        if len(words) == 1 and output_dir is None:
            return orders.from_script(Path(words[0]), python=python, home=home, cwd=cwd)
        return orders.from_command(words, output_dir=output_dir, cwd=cwd, python=python, home=home)

    order = ordered(fresh)
    if replace and following.changed(order):
        order, fresh = ordered(True), True
    chosen = orders.read_limits(limits, hardened=order.hardened, max_restarts=max_restarts)
    if check:
        print(f"can be supervised: {order.trainee.argv[0]} trains {order.job.checkout} into {order.run.output_dir}")
        _end(GOOD)
    if follow:
        _end(_follow(order.run, orders.without(sys.argv[1:], "--follow"), notes))
    again = orders.without(sys.argv[1:], "--fresh", "--replace")
    outcome = foreground.supervise(order, chosen, fresh=fresh, tell=_Teller(notes).tell, again=again)
    if outcome.left:
        print(_detached(order.run))
        _end(GOOD)
    print(outcome.reason)
    _end(GOOD if outcome.finished else BAD)


def _detached(run: RunDir) -> str:
    return f"detached; the run goes on. To stop it: fluxguard stop {shlex.quote(str(run.output_dir))}"


def _follow(run: RunDir, arguments: list[str], notes: Sequence[str]) -> int:
    from fluxguard.supervisor import following

    screen = _Screen()
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


class _Screen:
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
        from fluxguard.supervisor.telling import text

        said = text(event)
        if said is not None:
            self.line(f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {said}")


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
        from fluxguard.supervisor.telling import text

        while self._notes:
            _tell_line(event.at, self._notes.pop(0))
        said = text(event)
        if said is not None:
            _tell_line(event.at, said)


def _tell_line(at: float, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}", flush=True)


@app.command()
def status(
    output_dir: OutputDir,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Say how a run is: state, step, incidents. Exit code 1 when it is stopped."""
    from fluxguard.supervisor import status as statuses

    seen = statuses.read(RunDir(output_dir))
    if seen is None:
        raise InputError(output_dir, "holds no run of fluxguard")
    if as_json:
        print(json.dumps(seen.to_mapping(), indent=2))
    else:
        _show(rendering.status(seen.to_mapping()))
    _end(BAD if seen.state == "stopped" else GOOD)


@app.command("limits")
def show_limits(
    output_dir: OutputDir,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the limits of a run, and why each is what it is: default, chosen, or learned."""
    from fluxguard.supervisor import remembering

    rows = {row.name: row.to_mapping() for row in remembering.explained(RunDir(output_dir))}
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _show(rendering.limits(rows))


@app.command()
def stop(output_dir: OutputDir) -> None:
    """Stop a run; it can be resumed by `fluxguard supervise`."""
    from fluxguard.supervisor import stopping

    print(stopping.stop(RunDir(output_dir), SystemClock()))


@app.command()
def demo(
    fault: Annotated[list[str] | None, typer.Option(help="kill, swap or worker; all three by default.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where it happens.", show_default="outputs/demo-TIME")] = None,
) -> None:
    """Train a miniature, break it on purpose, and see it end as if nothing had happened. No download, no GPU."""
    from fluxguard.drill import drill, faults

    chosen = faults.named(fault or [])
    where = folder or Path("outputs") / time.strftime("demo-%Y%m%d-%H%M%S")
    where.mkdir(parents=True, exist_ok=True)
    result = drill.run(where, chosen, SystemClock(), lambda text: _tell_line(time.time(), text))
    _show(rendering.drill(result))
    _end(GOOD if result.passed else BAD)


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
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
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
            _end(GOOD)
        if revert:
            answers = [job.revert(place) for place in (places.wanted if fluxgym is False else places.all)]
        else:
            answers = [(job.check if check else job.apply)(place) for place in places.wanted]
    if as_json:
        print(json.dumps(asking.to_mapping(answers), indent=2))
    else:
        _show(rendering.hardening(answers))
        if places.offer and not revert:
            print(places.offer)
    _end(GOOD if all(answer.good for answer in answers) else BAD)


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
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    path: Annotated[str, typer.Option(help="`lora`: only where a FLUX LoRA training may come.")] = "all",
) -> None:
    """List calls that may wait for ever, and those that only some ranks come to. Exit code 1 if there are any."""
    from fluxguard.patching import scanning

    found = scanning.scan(folder, path=path)
    if as_json:
        print(json.dumps(found.to_mapping(), indent=2))
    else:
        _show(rendering.scan(found))
    _end(BAD if found.findings else GOOD)


@app.command("app", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def page(context: typer.Context) -> None:
    """Serve the web page on http://127.0.0.1:7860; the same as `python app/app.py`."""
    from fluxguard.app.app import main as serve

    _end(serve(context.args))
