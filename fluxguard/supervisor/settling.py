"""What the new owner of a run settles first: is it the same job, is it finished, does it begin anew."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch import job, masking
from fluxguard.rundir import FOLDER, RunDir, read_json, write_json
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import beats, ledger, ownership, record, remembering
from fluxguard.supervisor.checkpoints import weights
from fluxguard.supervisor.detecting import patterns
from fluxguard.supervisor.learning import Chosen
from fluxguard.supervisor.order import Order

_DIGEST = 16
_ASIDE = ("*.safetensors", "*-state", "sample")


def settle_job(order: Order, chosen: Chosen, *, fresh: bool, arguments: Sequence[str] = ()) -> str:
    """Write the frozen job, or make sure that the one that is there is the same; for the owner of the run.

    Return why there is nothing to do, or an empty text. A command that has trained nothing yet may be corrected.
    `arguments` are those of our own command line that start this run again.
    Raises InputError naming the field that changed.
    """
    run = order.run
    written = read_json(run.job)
    if written is not None and not fresh:
        difference = job.changed(job.Job.from_mapping(written, str(run.job)), order.job)
        if difference and has_begun(run):
            raise InputError(run.output_dir, f"{difference} (use --fresh to begin a new run)", "the job changed")
        if done := _finished(order):
            return done
    trained = {"hardened": order.hardened, "trained_in": str(order.trained_in)}
    started = {
        "arguments": list(masking.masked(arguments)),
        "arguments_in": os.getcwd(),
        "host": socket.gethostname(),
    }
    write_json(run.job, {**order.job.to_mapping(), **trained, **started, **remembering.to_job(chosen)})
    remembering.tell_guard(run, chosen.grown(remembering.learned(run)))
    if order.watch_log is not None:
        patterns.keep(run, order.watch_log)
    beats.clear_leftovers()
    run.open_beats()
    return ""


def digest(order: Order) -> str:
    """Return what tells the command of a run from another one."""
    return hashlib.sha256(json.dumps(order.job.argv).encode()).hexdigest()[:_DIGEST]


def has_begun(run: RunDir) -> bool:
    """Return whether something of a run exists that another command must not touch."""
    events = ledger.read(run.ledger)
    attempt = attempts.last(run, events)
    trained = any(event.values.get("step") for event in events if event.kind == "ended")
    saved = any(run.states.glob("step-*")) or any(event.kind == "finished" for event in events)
    return trained or saved or (attempt is not None and not attempts.closed(events, attempt.uuid))


def _finished(order: Order) -> str:
    """Return why there is nothing to do when the run is finished and its weights are still there, whole."""
    last = record.conclusion(ledger.read(order.run.ledger))
    if last is None or last.kind != "finished":
        return ""
    path = order.trainee.weights
    return str(last.values["reason"]) if path is None or weights.verify(path, newer_than=0).verified else ""


def start_fresh(run: RunDir) -> Path | None:
    """Move what earlier runs left in the output folder aside; return where it is now. Nothing is deleted.

    For the owner of the run: what says who owns it stays, and so does what other machines save now.
    Raises InputError while a training still goes on there.
    """
    attempt = attempts.last(run, ledger.read(run.ledger))
    if attempt is not None and attempt.processes():
        raise InputError(run.output_dir, "its training still goes on; stop it first (fluxguard stop)", "--fresh")
    shared = run.node and any(_is_watched(other) for other in run.nodes() if other.node != run.node)
    found = [] if shared else [path for pattern in _ASIDE for path in run.output_dir.glob(pattern)]
    ours = [path for path in run.root.iterdir() if path not in (run.lock, run.owner)]
    if not run.ledger.exists() and not found:
        return None
    aside = run.output_dir / time.strftime("old-%Y%m%d-%H%M%S")
    records = aside / run.root.relative_to(run.output_dir)
    records.mkdir(parents=True)
    (aside / FOLDER).chmod(0o700)
    for path in found:
        shutil.move(path, aside / path.name)
    for path in ours:
        shutil.move(path, records / path.name)
    run.create()
    return aside


def _is_watched(run: RunDir) -> bool:
    return ownership.owner(run) is not None or ownership.elsewhere(run) is not None
