"""Whether a state is one of this run: its attempt, its network, and how many processes trained it."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fluxguard.manifest import Manifest, opened
from fluxguard.rundir import RunDir, read_json
from fluxguard.supervisor import ledger
from fluxguard.supervisor.checkpoints import tensors, verdicts
from fluxguard.supervisor.checkpoints.tensors import Tensor

_HARDENED = "fluxguard-random.json"
"""What only a hardened trainer leaves in a state; only it knows how many processes there are."""
_TRIED = 3  # the newest may be half written


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the states of a run have in common."""

    attempts: frozenset[str] | None = None
    """The uuids of its attempts; None where they are not known all."""
    network: str = ""
    """As `tensors.network` says; empty while unknown."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By name, of the newest weights that the run has written."""
    world_size: int = 0
    """Processes of a hardened trainer; 0 while unknown."""


def stranger(known: Manifest, network: tuple[Tensor, ...], family: Family) -> str:
    """Return why a state is not of this family, in words; empty where nothing speaks against it."""
    if known.attempt and family.attempts is not None and known.attempt not in family.attempts:
        return "was saved by another run"
    if family.world_size and _HARDENED in known.files and known.world_size != family.world_size:
        return f"was saved by {known.world_size} processes, those of this run by {family.world_size}"
    if tensor := _differing(network, family.shapes):
        here = f"{_by(tensor.shape)}, in this run {_by(family.shapes[tensor.name])}"
        return f"holds another network ({tensor.name}: {here})"
    if network and family.network and tensors.network(network) != family.network:
        return "holds another network than the other states of this run"
    return ""


def _by(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def family(run: RunDir, states: Mapping[Path, Manifest | None]) -> Family:
    """Return what most of `states` have in common, as far as their headers and the ledger tell; oldest first.

    Where no two agree more than others do, the newest weights that the run has written decide, and then the age.
    """
    events = ledger.read(run.ledger)
    attempts = [event for event in events if event.kind == "attempt"]
    networks = [network for folder in states if (network := verdicts.network_of(folder))]
    agreed = Counter(map(tensors.network, networks)).most_common(2)
    shapes: Mapping[str, tuple[int, ...]] = {}
    if agreed and (agreed[0][1] == 1 or (len(agreed) > 1 and agreed[0][1] == agreed[1][1])):
        shapes = _newest_weights(run, attempts[0].at if attempts else 0.0)
        agreed = Counter(tensors.network(one) for one in networks if not _differing(one, shapes)).most_common(1)
    ranks = Counter(known.world_size for known in states.values() if known is not None and _HARDENED in known.files)
    return Family(
        attempts=frozenset(str(event.values["attempt"]) for event in attempts) if _all_read(run, len(events)) else None,
        network=agreed[0][0] if agreed else "",
        shapes=shapes,
        world_size=ranks.most_common(1)[0][0] if ranks else 0,
    )


def _differing(network: tuple[Tensor, ...], shapes: Mapping[str, tuple[int, ...]]) -> Tensor | None:
    return next((one for one in network if shapes.get(one.name, one.shape) != one.shape), None)


def _all_read(run: RunDir, events: int) -> bool:
    try:
        return bool(events) and run.ledger.read_bytes().count(b'"event"') <= events
    except OSError:
        return False


def _newest_weights(run: RunDir, began: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes in the newest weights that a run has written since it began, none where there are none."""
    name = (read_json(run.job) or {}).get("output_name") or ""
    written = []
    for path in run.output_dir.glob("*.safetensors"):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_mtime >= began and path.name.startswith(str(name)):
            written.append((found.st_mtime, path))
    for _, path in sorted(written, reverse=True)[:_TRIED]:
        try:
            with opened(path.parent, path.name) as file:
                return {tensor.name: tensor.shape for tensor in tensors.header(file)}
        except (OSError, ValueError):
            continue
    return {}
