"""Laws of the states of an unhardened trainer that are listed while it trains on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluxguard import manifest
from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.quiet import Lister, quiet
from tests.supervisor.test_states import PLAN, cut, newest, state

WRITTEN = 1000.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with two states that were written a while ago."""
    made = RunDir(tmp_path)
    made.create()
    for step in (4, 8):
        written(state(made, f"x-step{step:08d}", 1, step), WRITTEN + step)
    return made


def written(folder: Path, at: float) -> Path:
    """Make every file of a state as old as that."""
    for path in folder.iterdir():
        os.utime(path, (at, at))
    return folder


def listed(run: RunDir, lister: Lister | None = None, *, now: float = WRITTEN + 60) -> set[str]:
    """Look once, wait for the end of it, and return the states that have a manifest."""
    lister = lister or Lister(run)
    lister.look(PLAN, since=0, now=now)
    lister.rest()
    return {path.parent.name for path in run.output_dir.glob(f"*-state/{manifest.NAME}")}


def test_a_bit_that_flips_later_is_seen(run: RunDir) -> None:
    """Without the digests nothing in the weights of an unhardened state would tell."""
    assert listed(run) == {"x-step00000004-state", "x-step00000008-state"}
    weights = run.output_dir / "x-step00000008-state" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-10] ^= 1
    weights.write_bytes(data)
    assert newest(run) == 4


def test_a_state_that_is_still_written_is_left_alone(run: RunDir) -> None:
    """Its digests would be those of a part."""
    now = WRITTEN + 8 + 4
    assert [folder.name for folder in quiet(run.output_dir, since=0, now=now)] == ["x-step00000004-state"]


def test_a_state_of_another_training_is_left_alone(run: RunDir) -> None:
    """What was there before belongs to somebody else."""
    assert [f.name for f in quiet(run.output_dir, since=WRITTEN + 6, now=WRITTEN + 60)] == ["x-step00000008-state"]


def test_a_state_that_is_cut_short_gets_no_manifest(run: RunDir) -> None:
    """And it is not read again until something in it changes."""
    torn = run.output_dir / "x-step00000008-state"
    cut(torn / "optimizer.bin")
    written(torn, WRITTEN)
    lister = Lister(run)
    assert listed(run, lister) == {"x-step00000004-state"}
    whole = state(run, "whole", 1, 8)
    (whole / "optimizer.bin").replace(torn / "optimizer.bin")
    for path in whole.iterdir():
        path.unlink()
    whole.rmdir()
    written(torn, WRITTEN + 1)
    assert listed(run, lister, now=WRITTEN + 70) == {"x-step00000004-state", "x-step00000008-state"}


def test_without_the_steps_of_an_epoch_nothing_is_listed(run: RunDir) -> None:
    """A true step that is not known is not guessed."""
    lister = Lister(run)
    lister.look(states.Plan(), since=0, now=WRITTEN + 60)
    lister.rest()
    assert not list(run.output_dir.glob(f"*-state/{manifest.NAME}"))


def test_a_state_that_is_written_anew_in_its_place_is_judged_anew(run: RunDir) -> None:
    """A training outside fluxguard saves under the same names; one file that changes is still damage."""
    listed(run)
    again = run.output_dir / "x-step00000008-state"
    later = (again / manifest.NAME).stat().st_mtime + 60
    for path in again.iterdir():
        if path.name == "model.safetensors":
            data = bytearray(path.read_bytes())
            data[-10] ^= 1
            path.write_bytes(data)
        if path.name != manifest.NAME:
            os.utime(path, (later, later))
    assert states.seal(run, PLAN, since=0).aside == ()
    assert newest(run) == 8
