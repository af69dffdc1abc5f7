"""Whatever is wrong with a state, it is refused, nothing in it is run, and the newest good one is chosen."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.states import Plan
from tests.supervisor import damages
from tests.supervisor.damages import ATTEMPT, Damage

PLAN = Plan(planned_steps=40, batches_per_epoch=10)
PARTS = {
    "cut": 4, "flipped": 8, "missing": 1, "grown": 1, "swapped": 1, "header": 4, "not finite": 4, "bomb": 6,
    "archive": 1, "place": 4, "manifest": 3, "foreign": 1,
}  # fmt: skip
"""By kind of damage, into how many tests it is parted."""
LEAST = 500


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Damage]]]:
    """A folder with whole states to copy, and everything that can happen to one."""
    place = tmp_path_factory.mktemp("damages")
    real, os.fsync = os.fsync, lambda _: None  # type: ignore[assignment]
    try:
        for bare, name in ((False, "hardened"), (True, "bare")):
            damages.write(place / f"{name}-4", epoch=1, step=4, bare=bare)
            damages.write(place / f"{name}-8", epoch=1, step=8, bare=bare)
        outside = place / "outside.bin"
        outside.write_bytes(b"not of the state")
        yield place, damages.all_of(place / "canary", outside)
    finally:
        os.fsync = real


def laid_out(run: RunDir, place: Path, *, bare: bool) -> Path:
    """Make a run with two whole states in its output folder; return the newer one."""
    run.create()
    event = {"attempt": ATTEMPT, "number": 1, "start_step": 0, "log_from": 0}
    run.ledger.write_text(json.dumps({"version": 1, "event": "attempt", "at": 0.0, **event}) + "\n")
    name = "bare" if bare else "hardened"
    shutil.copytree(place / f"{name}-4", run.output_dir / "x-step00000004-state")
    return Path(shutil.copytree(place / f"{name}-8", run.output_dir / "x-step00000008-state"))


def chosen(run: RunDir) -> int | None:
    """Return the true step of the state that the next attempt starts from."""
    sealed = states.seal(run, PLAN, since=0)
    found = next(states.verified(run, PLAN, [], sealed.fresh), None)
    return found.true_step if found else None


@pytest.mark.parametrize("bare", [False, True])
def test_undamaged_ones_are_chosen(known: tuple[Path, list[Damage]], tmp_path: Path, *, bare: bool) -> None:
    """The newest of two whole states, so that what follows cannot pass by refusing everything."""
    run = RunDir(tmp_path)
    laid_out(run, known[0], bare=bare)
    assert chosen(run) == 8


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in PARTS.items() for part in range(parts)])
def test_a_damaged_state_is_refused_and_the_one_before_is_chosen(
    known: tuple[Path, list[Damage]], tmp_path: Path, kind: str, part: int
) -> None:
    """Each damage of a kind, one after the other; nothing in a state is ever run, or reached outside of it."""
    place, every = known
    wrong = []
    mine = [one for one in every if one.kind == kind][part :: PARTS[kind]]
    for number, damage in enumerate(mine):
        run = RunDir(tmp_path / str(number))
        damage.do(laid_out(run, place, bare=damage.bare))
        if (found := chosen(run)) != 4 or not run.aside.is_dir():
            wrong.append((damage.label, found))
    assert mine
    assert not wrong
    assert not (place / "canary").exists()


@pytest.mark.parametrize("kind", ["cut", "flipped", "missing", "place"])
def test_what_rots_after_it_was_sealed_is_found_too(
    known: tuple[Path, list[Damage]], tmp_path: Path, kind: str
) -> None:
    """A sealed state is read again before a run goes on from it."""
    place, every = known
    wrong = []
    for number, damage in enumerate(itertools.islice((one for one in every if one.kind == kind), 20)):
        run = RunDir(tmp_path / str(number))
        laid_out(run, place, bare=damage.bare)
        states.seal(run, PLAN, since=0)
        damage.do(run.states / "step-00000008")
        if (found := chosen(run)) != 4:
            wrong.append((damage.label, found))
    assert not wrong


def test_there_are_many_of_every_kind(known: tuple[Path, list[Damage]]) -> None:
    """At least 500 in all, each named once, and none of a kind that is not tried."""
    counted = Counter(damage.kind for damage in known[1])
    assert set(counted) == set(PARTS)
    assert counted.total() >= LEAST
    assert len({(damage.kind, damage.label) for damage in known[1]}) >= counted.total() - damages.FLIPS // 50
