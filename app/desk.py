"""What the page can do, without the page: it reads files, starts and stops runs, and keeps nothing that a run needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fluxguard.clock import SystemClock
from fluxguard.errors import FluxguardError, InputError
from fluxguard.launch import masking
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import ledger, record, stopping
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.showing import snapshot, status
from fluxguard.supervisor.showing.readings import readings
from fluxguard.supervisor.showing.snapshot import Points

from . import start, view
from .runs import Registry, Run
from .view import Launch, Screen

_log = logging.getLogger(__name__)

_LONGEST_REPORT = 64 << 10


class Desk:
    """The runs that one page looks after, whichever browser asks."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._stopping: set[str] = set()
        self._trouble: dict[str, str] = {}
        self._starting = threading.Lock()
        self._points: dict[str, Points] = {}
        self._looking = threading.Lock()

    def choices(self) -> list[tuple[str, str]]:
        """Return (label, output folder) of every known run, newest first."""
        return [(_label(Path(run.output_dir)), run.output_dir) for run in reversed(self.registry.read())]

    def newest(self) -> str | None:
        """Return the output folder of the newest run that goes on, else of the newest one."""
        runs = [run.output_dir for run in reversed(self.registry.read())]
        going_on = (folder for folder in runs if _state(RunDir(folder)) == "running")
        return next(going_on, runs[0] if runs else None)

    def screen(self, output_dir: str | None) -> Screen:
        """Return what to show for a run; the empty screen for one that the page does not know."""
        known = self.registry.find(output_dir) if output_dir else None
        if known is None:
            return view.EMPTY
        run = RunDir(known.output_dir)
        secrets = _secrets(known.train_sh)
        seen = self._seen(run)
        return view.screen(
            _masked(seen, secrets) if seen else None,
            _launch(run, known, secrets),
            stopping=known.output_dir in self._stopping or run.stop.exists(),
            trouble=masking.mask(self._trouble.get(known.output_dir, ""), secrets),
            now=time.time(),
        )

    def mapping(self, output_dir: str | None) -> dict[str, Any]:
        """Return the status of a known run as plain values, masked; for scripts."""
        known = self.registry.find(output_dir) if output_dir else None
        seen = self._seen(RunDir(known.output_dir)) if known else None
        return _masked(seen, _secrets(known.train_sh)) if known and seen else {}

    def _seen(self, run: RunDir) -> dict[str, Any] | None:
        with self._looking:
            found = snapshot.read(run, SystemClock(), self._points.setdefault(str(run.output_dir), Points(run)))
        if found is None:
            return None
        seen = found.status.to_mapping()
        if found.eta is not None:
            seen["eta_s"] = found.eta  # the trainer's own bar counts what is not steps, too
        seen["machine"] = readings(found.point, found.at) if found.status.state == "running" else ()
        seen["incidents"] = [{**_report(run, one.get("report")), **one} for one in seen["incidents"]]
        return seen

    def start_demo(self) -> str:
        """Start a new demo; return its output folder. Raises FluxguardError and OSError."""
        with self._starting:
            return self._supervise(start.check(str(start.demo())), fresh=False)

    def start_script(self, typed: str, *, fresh: bool) -> str:
        """Start a train.sh, or go on with its run; return its output folder. Raises FluxguardError and OSError."""
        with self._starting:
            return self._supervise(start.check(typed), fresh=fresh)

    def resume(self, output_dir: str) -> None:
        """Go on with a run that is stopped, or watch one again. Raises FluxguardError and OSError."""
        known = self.registry.find(output_dir)
        if known is not None:
            self.start_script(known.train_sh, fresh=False)

    def _supervise(self, checked: start.Checked, *, fresh: bool) -> str:
        output_dir = str(checked.run.output_dir)
        known = self.registry.find(output_dir)
        if known is None or not _supervises(checked.run, known):
            self._trouble.pop(output_dir, None)
            start.refuse_running(checked.run)
            self.registry.add(start.supervise(checked.train_sh, checked.run, fresh=fresh))
        return output_dir

    def stop(self, output_dir: str) -> threading.Thread | None:
        """Ask for a known run to be stopped and return at once; the thread that waits for it is returned."""
        known = self.registry.find(output_dir)
        if known is None or output_dir in self._stopping:
            return None
        self._stopping.add(output_dir)
        self._trouble.pop(output_dir, None)
        thread = threading.Thread(target=self._stop, args=(output_dir,), name="stop", daemon=True)
        thread.start()
        return thread

    def _stop(self, output_dir: str) -> None:
        try:
            stopping.stop(RunDir(output_dir), SystemClock())
        except InputError as error:
            self._trouble[output_dir] = f"Not stopped: {error.reason}."
        except (FluxguardError, OSError) as error:
            _log.warning("stopping %s failed", output_dir, exc_info=True)
            self._trouble[output_dir] = f"Not stopped: {error}."
        finally:
            self._stopping.discard(output_dir)


def _label(output_dir: Path) -> str:
    try:
        return str(output_dir.relative_to(Path.cwd()))
    except ValueError:
        return str(output_dir)


def _state(run: RunDir) -> str:
    seen = status.read(run)
    return seen.state if seen else "starting"


def _alive(known: Run) -> bool:
    return Identity(known.pid, known.pid_started).alive()


def _supervises(run: RunDir, known: Run) -> bool:
    """Whether the supervisor of a run is at work; one that has ended the run only has to leave yet."""
    ended = record.conclusion(ledger.read(run.ledger))
    return _alive(known) and (ended is None or ended.at < known.started_at)


def _launch(run: RunDir, known: Run, secrets: frozenset[str]) -> Launch:
    alive = _alive(known)
    heard = any(event.at >= known.started_at and event.kind != "job" for event in ledger.read(run.ledger))
    text = "" if heard or alive else start.said(run, known.log_from)
    return Launch(at=known.started_at, alive=alive, said=masking.mask(text, secrets), heard=heard)


def _secrets(train_sh: str) -> frozenset[str]:
    path = Path(train_sh)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        stamp = 0
    return _secrets_at(path, stamp)


@lru_cache(maxsize=32)
def _secrets_at(train_sh: Path, stamp: int) -> frozenset[str]:
    return start.secrets(train_sh)


def _report(run: RunDir, path: object) -> dict[str, Any]:
    """Return what the report of an incident adds to its line in the ledger; only files of this run are read."""
    if not isinstance(path, str) or not Path(path).resolve().is_relative_to(run.incidents):
        return {}
    values = read_json(Path(path).with_name("report.json")) or {}
    try:
        text = Path(path).read_bytes()[:_LONGEST_REPORT].decode("utf-8", "replace")
    except OSError:
        text = ""
    told = {key: values.get(key) for key in ("at", "advice", "decision", "flags", "action")}
    return {**told, "text": text}


def _masked(value: Any, secrets: frozenset[str]) -> Any:
    """Return plain values with every text in them masked."""
    if isinstance(value, str):
        return masking.mask(value, secrets)
    if isinstance(value, Mapping):
        return {key: _masked(one, secrets) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(one, secrets) for one in value]
    return value
