"""Laws of listing states: what is said is what the next start does, and nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fluxguard import manifest
from fluxguard.cli import app
from fluxguard.distributed.saving import sealing
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import holding, states
from fluxguard.supervisor.checkpoints.holding import ASIDE, DAMAGED, LOOP, OUTPUT, SEALED, UNVERIFIED, VERIFIED, Holding
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.showing import status
from tests.supervisor import damages
from tests.supervisor.damages import ATTEMPT

PLAN = Plan(planned_steps=40, batches_per_epoch=10)


def begun(folder: Path, **more: Any) -> RunDir:
    """Make a run whose first attempt was made long ago."""
    run = RunDir(folder)
    run.create()
    events = [
        {"event": "plan", "planned_steps": 40, "batches_per_epoch": 10, "accumulation": 1},
        {"event": "attempt", "attempt": ATTEMPT, "number": 1, "start_step": 0, "log_from": 0},
        *([more] if more else []),
    ]
    run.ledger.write_text("".join(json.dumps({"version": 1, "at": 1.0, **event}) + "\n" for event in events))
    return run


def listed(run: RunDir, *, verify: bool = False) -> Holding:
    """List the states of a run; whatever is in its folder is the same afterwards."""
    before = snapshot(run.output_dir)
    found = holding.look(run.output_dir, now=1e10, verify=verify)
    assert snapshot(run.output_dir) == before
    return found


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what would change if anything in a folder did."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def test_the_one_that_is_named_is_the_one_that_is_used(tmp_path: Path) -> None:
    """Sealed ones and those still in the output folder are taken together, the damaged ones left out."""
    run = begun(tmp_path)
    damages.write(tmp_path / "x-step00000004-state", epoch=1, step=4, bare=True)
    damages.write(run.states / "step-00000008", epoch=1, step=8)
    broken = damages.write(tmp_path / "x-step00000009-state", epoch=1, step=9, bare=True)
    (broken / "optimizer.bin").write_bytes(b"")
    found = listed(run)
    assert [(state.step, state.where, state.verdict, state.next) for state in found.states] == [
        (9, OUTPUT, DAMAGED, False),
        (8, SEALED, UNVERIFIED, True),
        (4, OUTPUT, UNVERIFIED, False),
    ]
    sealed = states.seal(run, PLAN, since=1.0)
    used = next(states.verified(run, PLAN, [], sealed.fresh))
    assert found.chosen is not None
    assert used.true_step == found.chosen.step
    after = listed(run)
    assert [(state.step, state.where) for state in after.states] == [(8, SEALED), (4, SEALED), (9, ASIDE)]


def test_an_interrupted_run_has_saved_what_its_next_start_uses(tmp_path: Path) -> None:
    """Nobody has taken in yet what the trainer left in the output folder."""
    run = begun(tmp_path)
    damages.write(run.states / "step-00000008", epoch=1, step=8)
    seen = status.read(run)
    assert seen is not None
    assert seen.applied_steps == 8
    damages.write(tmp_path / "x-step00000009-state", epoch=1, step=9, bare=True)
    seen = status.read(run)
    assert seen is not None
    assert seen.applied_steps == 9


@pytest.mark.parametrize("verify", [False, True])
def test_a_flipped_bit_shows_only_when_it_is_looked_for(tmp_path: Path, *, verify: bool) -> None:
    """Without reading the files the verdict says so: not verified."""
    run = begun(tmp_path)
    folder = damages.write(run.states / "step-00000008", epoch=1, step=8)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    (state,) = listed(run, verify=verify).states
    assert state.verdict == (DAMAGED if verify else UNVERIFIED)
    assert ("digest" in state.reason) is verify


def test_a_whole_state_is_verified(tmp_path: Path) -> None:
    """With its manifest, and without one."""
    run = begun(tmp_path)
    damages.write(run.states / "step-00000008", epoch=1, step=8)
    damages.write(tmp_path / "x-step00000004-state", epoch=1, step=4, bare=True)
    assert [state.verdict for state in listed(run, verify=True).states] == [VERIFIED, VERIFIED]


def test_why_one_is_not_used_is_said(tmp_path: Path) -> None:
    """Finished ones, foreign ones, and those from before the run."""
    run = begun(tmp_path)
    damages.write(tmp_path / "x-state", epoch=4, step=40, bare=True)
    damages.write(run.states / "step-00000008", epoch=1, step=8, attempt=ATTEMPT.replace("7", "8"))
    found = listed(run)
    assert [state.reason for state in found.states] == [
        "holds every planned step: nothing could be trained from it",
        "was saved by another run",
    ]
    assert found.chosen is None
    assert not found.usable
    run.ledger.write_text(run.ledger.read_text().replace('"at": 1.0', '"at": 9e9'))
    assert "belongs to another training" in listed(run).states[0].reason


def test_a_finished_run_goes_on_from_nothing(tmp_path: Path) -> None:
    """Its states are whole all the same."""
    ended = {"event": "finished", "attempt": ATTEMPT, "reason": "-", "weights": "-", "applied_steps": 40}
    run = begun(tmp_path, **ended)
    damages.write(run.states / "step-00000008", epoch=1, step=8)
    found = listed(run)
    assert (found.finished, found.chosen, found.usable) == (True, None, True)


def test_states_of_a_training_without_fluxguard_are_listed_too(tmp_path: Path) -> None:
    """With the step that their trainer counted."""
    damages.write(tmp_path / "x-000002-state", epoch=2, step=17, bare=True)
    found = listed(RunDir(tmp_path), verify=True)
    assert [(state.step, state.epoch, state.counted, state.verdict) for state in found.states] == [
        (17, 2, False, VERIFIED)
    ]
    assert found.usable
    assert not found.run


def test_who_asked_for_it_is_said(tmp_path: Path) -> None:
    """By the manifest."""
    run = begun(tmp_path)
    folder = damages.write(run.states / "step-00000008", epoch=1, step=8)
    damages.seal(folder, asked=manifest.OURS)
    assert [state.asked for state in listed(run).states] == [manifest.OURS]


def test_a_folder_without_either_is_the_users_mistake(tmp_path: Path) -> None:
    """Neither a run nor a state."""
    with pytest.raises(InputError, match="no run of fluxguard"):
        holding.look(tmp_path, now=0.0, verify=False)


def test_the_verb_tells_it_by_its_exit_code(tmp_path: Path) -> None:
    """0 when one can be used, 1 when none can though some are there."""
    run = begun(tmp_path)
    folder = damages.write(run.states / "step-00000008", epoch=1, step=8)
    seen = CliRunner().invoke(app, ["states", str(tmp_path)])
    assert (seen.exit_code, "goes on from step 8" in seen.output) == (0, True)
    told = json.loads(CliRunner().invoke(app, ["states", str(tmp_path), "--json", "--verify"]).output)
    assert (told["next"], told["states"][0]["verdict"]) == (str(folder), VERIFIED)
    (folder / "optimizer.bin").unlink()
    assert CliRunner().invoke(app, ["states", str(tmp_path)]).exit_code == 1


def test_a_path_is_never_broken_in_two(tmp_path: Path) -> None:
    """Not into a pipe, however long it is."""
    begun(tmp_path)
    name = f"{'a-long-name-' * 12}step00000004-state"
    damages.write(tmp_path / name, epoch=1, step=4, bare=True)
    lines = CliRunner().invoke(app, ["states", str(tmp_path)]).output.splitlines()
    assert sum(line.endswith(f" {name}") for line in lines) == 1


def saved(folder: Path, step: int) -> Path:
    """Save a state as `distributed.save_state` does."""

    def fill(partial: Path) -> None:
        (partial / f"{sealing.TRAINER}.json").write_text("{}")
        (partial / sealing.RANK.format(0)).write_text("{}")

    state = sealing.path_of(folder, step)
    folder.mkdir(parents=True, exist_ok=True)
    sealing.write(state, fill, {"true_step": step, "epoch": 2, "batch": 3, "world_size": 2, "attempt": ""})
    sealing.publish(state)
    return state


@pytest.mark.parametrize("folder", ["", "states"])
@pytest.mark.parametrize("run", [True, False])
def test_states_that_a_loop_has_saved_are_listed(tmp_path: Path, folder: str, run: bool) -> None:
    """In the output folder or in one of it, with a verdict, and with the one that `newest_state` takes."""
    if run:
        begun(tmp_path)
    for step in (4, 8, 12):
        saved(tmp_path / folder, step)
    broken = tmp_path / folder / "step-00000012" / "trainer.json"
    broken.write_text("[]")  # of the same size
    where = RunDir(tmp_path)
    assert [(one.step, one.verdict, one.next) for one in listed(where).states] == [
        (12, UNVERIFIED, True),
        (8, UNVERIFIED, False),
        (4, UNVERIFIED, False),
    ]
    read = listed(where, verify=True)
    assert [(one.step, one.epoch, one.where, one.verdict, one.next) for one in read.states] == [
        (None, None, LOOP, DAMAGED, False),
        (8, 2, LOOP, VERIFIED, True),
        (4, 2, LOOP, VERIFIED, False),
    ]
    said = CliRunner().invoke(app, ["states", str(tmp_path), "--verify"])
    assert said.exit_code == 0
    assert "digest differs" in said.output
    assert "goes on from step 8, where the loop asks `newest_state`" in said.output


def test_a_loop_whose_states_are_all_damaged_has_none(tmp_path: Path) -> None:
    """Nor is a folder one that only has such a name."""
    (saved(tmp_path, 4) / manifest.NAME).unlink()
    (tmp_path / "step-00000005").mkdir()
    found = listed(RunDir(tmp_path))
    assert [(one.verdict, one.reason) for one in found.states] == [(DAMAGED, "has no manifest")]
    assert not found.usable
