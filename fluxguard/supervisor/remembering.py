"""Where what was learned comes from and where it is kept: heartbeats, `learned.json`, `limits.json`, `job.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fluxguard import limits as limits_file
from fluxguard.errors import InputError
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, read_json, write_json
from fluxguard.supervisor import learning
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.learning import NOTHING, Chosen, Explained, Learned

_log = logging.getLogger(__name__)

_CHOSEN = "limits"
_NAMED = "limits_named"
_OLDER = "your limits file"  # what is not the default in a run from before it was written down who chose it


def learned(run: RunDir) -> Learned:
    """Return what a run has learned so far; a file that cannot be read has taught nothing, and a warning says so."""
    values = read_json(run.learned)
    if values is None and run.learned.exists():
        _log.warning("%s cannot be read: what was learned before is not used", run.learned)
    return Learned.from_mapping(values) if values else NOTHING


def of_attempt(run: RunDir, attempt: Attempt) -> Learned:
    """Return what the last heartbeats of all ranks of an attempt teach."""
    found = NOTHING
    for beat in attempt.beats(run):
        found = found.merged(learning.of_beat(beat))
    return found


def keep(run: RunDir, chosen: Chosen, what: Learned) -> None:
    """Write down what a run has learned, and the limits that its next attempt gets.

    A disk that does not take them costs what was learned, never the run.
    """
    try:
        write_json(run.learned, what.to_mapping())
        tell_guard(run, chosen.grown(what))
    except OSError as error:
        _log.warning("what was learned cannot be written down: %s", error)


def tell_guard(run: RunDir, limits: Limits) -> None:
    """Write the limits that the guard reads. Raises OSError.

    What is the default is left out at the top level: the guard in a copy that was hardened long ago refuses a file that
    names a limit it does not know.
    """
    default = Limits().to_mapping()
    write_json(run.limits, {name: value for name, value in limits.to_mapping().items() if value != default[name]})


def to_job(chosen: Chosen) -> dict[str, Any]:
    """Return what job.json says of the limits that were chosen for a run."""
    return {_CHOSEN: chosen.limits.to_mapping(), _NAMED: dict(chosen.named)}


def chosen(run: RunDir) -> Chosen:
    """Return the limits that were chosen for a run. Raises InputError when its output folder holds none."""
    job = read_json(run.job)
    if job is None:
        raise InputError(run.output_dir, "holds no run of fluxguard")
    named = job.get(_NAMED)
    try:
        limits = Limits.from_mapping(job[_CHOSEN], str(run.job))
    except (KeyError, TypeError, AttributeError, InputError):
        return _of_older(run, hardened=bool(job.get("hardened")))
    return Chosen(limits, {name: str(by) for name, by in named.items()} if isinstance(named, Mapping) else {})


def explained(run: RunDir) -> list[Explained]:
    """Return every limit of a run and why it is what it is. Raises InputError when there is no run."""
    known = chosen(run)
    return learning.explained(known, learned(run), hardened=(read_json(run.job) or {}).get("hardened"))


def _of_older(run: RunDir, *, hardened: bool) -> Chosen:
    """Return the limits of a run that was begun before it was written down who chose them."""
    default = Limits() if hardened else Limits().doubled()
    try:
        limits = limits_file.read(run.limits)
    except (OSError, InputError):
        return Chosen(default)
    return Chosen(limits, learning.differing(limits, default, _OLDER))
