"""Laws of choosing a state."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fluxguard import manifest
from fluxguard.rundir import RunDir
from fluxguard.supervisor.checkpoints import states, verdicts
from fluxguard.supervisor.checkpoints.quiet import quiet
from fluxguard.supervisor.checkpoints.states import Plan, true_step

PLAN = Plan(planned_steps=40, batches_per_epoch=10)


def state(run: RunDir, name: str, epoch: int, step: int) -> Path:
    """Write a state as an unhardened trainer does; `step` counts its own process only."""
    folder = run.output_dir / f"{name}-state"
    folder.mkdir()
    (folder / "train_state.json").write_text(json.dumps({"current_epoch": epoch, "current_step": step}))
    save_file({"w": np.ones(100)}, folder / "model.safetensors")
    for part in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        with zipfile.ZipFile(folder / part, "w") as archive:
            archive.writestr("state/data.pkl", pickle.dumps({"param_groups": [{"initial_lr": 1e-4}]}, protocol=2))
            archive.writestr("state/data/0", os.urandom(500))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An empty run."""
    made = RunDir(tmp_path)
    made.create()
    return made


def newest(run: RunDir, plan: Plan = PLAN) -> int | None:
    """Seal, then return the true step of the state that would be resumed from."""
    states.seal(run, plan, since=0)
    found = next(states.verified(run, plan, []), None)
    return found.true_step if found else None


@pytest.mark.parametrize(
    ("epoch", "step", "per_epoch", "true"),
    [(1, 8, 10, 8), (2, 12, 10, 12), (2, 2, 10, 12), (3, 10, 10, 30), (3, 20, 10, 30), (1, 5, 5, 5), (4, 1, 7, 22)],
)
def test_the_true_step_follows_from_the_epoch(epoch: int, step: int, per_epoch: int, true: int) -> None:
    """Whatever the process counted from, its step is congruent to the step in the epoch."""
    assert true_step(epoch, step, per_epoch) == true


def test_the_truest_state_is_chosen_not_the_highest_name(run: RunDir) -> None:
    """After a resume, step 8 of the second process can be truer than step 24 of the first."""
    state(run, "x-step00000024", 3, 24)
    state(run, "x-step00000008", 4, 8)
    assert newest(run) == 38


def cut(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "name", ["train_state.json", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"]
)
@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_a_torn_state_falls_back_to_the_one_before(run: RunDir, name: str, how: str) -> None:
    """Every file of a state counts, and what is torn is set aside, not deleted."""
    state(run, "x-step00000004", 1, 4)
    torn = state(run, "x-step00000008", 1, 8)
    if how == "missing":
        (torn / name).unlink()
    elif how == "cut":
        cut(torn / name)
    else:
        data = bytearray((torn / name).read_bytes())
        data[len(data) // 2 if name != "train_state.json" else 0] ^= 0xFF
        (torn / name).write_bytes(data)
    expected = 8 if (name, how) == ("model.safetensors", "flipped") else 4  # no checksum in there before it is sealed
    assert newest(run) == expected
    if expected == 4:
        assert [path.name for path in run.aside.iterdir()] == ["x-step00000008-state.0"]


def test_a_state_of_a_schedule_free_optimizer_is_whole_without_a_scheduler(run: RunDir) -> None:
    """Upstream steers none there, and accelerate then saves none; a scheduler leaves its mark in the optimizer."""
    free = state(run, "x-step00000004", 1, 4)
    (free / "scheduler.bin").unlink()
    with zipfile.ZipFile(free / "optimizer.bin", "w") as archive:
        archive.writestr("state/data.pkl", pickle.dumps({"param_groups": [{"train_mode": True}]}, protocol=2))
    assert newest(run) == 4


def test_a_sealed_state_that_rots_is_found(run: RunDir) -> None:
    """Once sealed, a single flipped bit shows."""
    state(run, "x-step00000004", 1, 4)
    state(run, "x-step00000008", 1, 8)
    states.seal(run, PLAN, since=0)
    rotten = run.states / "step-00000008" / "model.safetensors"
    data = bytearray(rotten.read_bytes())
    data[-10] ^= 1
    rotten.write_bytes(data)
    assert newest(run) == 4


def test_states_of_another_training_are_left_alone(run: RunDir) -> None:
    """What was there before the run began is not the run's."""
    old = state(run, "x-step00000004", 1, 4)
    later = old.stat().st_mtime + 100
    assert states.seal(run, PLAN, since=later) == states.Sealed()
    assert old.exists()
    assert next(states.verified(run, PLAN, []), None) is None


def test_which_states_are_anothers_is_said_by_name_and_files_not_by_a_clock(run: RunDir) -> None:
    """A clock that was set back makes the run's own states look old, one that ran ahead another's look new."""
    theirs = [state(run, name, 1, step) for name, step in (("x-step00000004", 4), ("x-step00000006", 6))]
    for folder, at in zip(theirs, (0, 4e9), strict=True):
        for path in folder.iterdir():
            os.utime(path, (at, at))
    others = states.stamps(run.output_dir)
    mine = state(run, "x-step00000008", 1, 8)
    for path in mine.iterdir():
        os.utime(path, (0, 0))
    assert quiet(run.output_dir, since=1e9, now=5e9, others=others) == [mine]
    assert states.seal(run, PLAN, since=1e9, others=others).steps == (8,)
    assert [path.exists() for path in (*theirs, mine)] == [True, True, False]
    assert others == states.stamps(run.output_dir)


def test_a_state_that_the_run_saves_under_the_name_of_anothers_is_its_own(run: RunDir) -> None:
    """A trainer overwrites what is there."""
    folder = state(run, "x-step00000004", 1, 4)
    others = states.stamps(run.output_dir)
    shutil.rmtree(folder)
    state(run, "x-step00000004", 1, 4)
    assert states.seal(run, PLAN, since=float("inf"), others=others).steps == (4,)


def test_a_state_of_every_planned_step_is_passed_over(run: RunDir) -> None:
    """Upstream refuses to start from it, so the last part is trained again."""
    state(run, "x-000003", 3, 30)
    state(run, "x", 4, 40)
    assert newest(run) == 30


def test_without_the_steps_of_an_epoch_nothing_is_sealed(run: RunDir) -> None:
    """A true step that is not known is not guessed."""
    state(run, "x-000003", 3, 30)
    assert newest(run, Plan()) is None


def test_two_states_of_one_step_become_one(run: RunDir) -> None:
    """Both embody the same steps."""
    state(run, "x-step00000010", 1, 10)
    state(run, "x-000001", 1, 10)
    assert newest(run) == 10
    assert [path.name for path in run.states.iterdir()] == ["step-00000010"]


def test_a_rotten_state_gives_way_to_a_fresh_one_of_its_step(run: RunDir) -> None:
    """The one that verifies is kept, whichever came first."""
    state(run, "x-step00000010", 1, 10)
    states.seal(run, PLAN, since=0)
    cut(run.states / "step-00000010" / "model.safetensors")
    state(run, "x-000001", 1, 10)
    assert newest(run) == 10


@pytest.mark.parametrize(("epoch", "step"), [(99, 3), (1, -5), (0, 3), (1, 0)])
def test_numbers_that_cannot_be_are_not_believed(run: RunDir, epoch: int, step: int) -> None:
    """A flipped digit must not become a step beyond the plan."""
    state(run, "x-step00000004", 1, 4)
    state(run, "x-step00000008", epoch, step)
    assert newest(run) == 4


@pytest.mark.parametrize("offset", [6, 8, 10, 16])
def test_flipped_bits_in_a_zip_header_are_found(run: RunDir, offset: int) -> None:
    """zipfile answers them with errors of many kinds."""
    state(run, "x-step00000004", 1, 4)
    damaged = state(run, "x-step00000008", 1, 8) / "optimizer.bin"
    data = bytearray(damaged.read_bytes())
    start = data.index(b"PK\x01\x02") + offset
    data[start] ^= 0xFF
    damaged.write_bytes(data)
    assert newest(run) == 4


def test_a_partial_that_verifies_is_a_state(run: RunDir) -> None:
    """A kill between the manifest and the rename loses nothing; one before the manifest leaves nothing."""
    folder = state(run, "x-step00000008", 1, 8)
    made = manifest.Manifest(
        true_step=8, epoch=1, batch=8, world_size=1, batches_per_epoch=10, files=manifest.of_files(folder)
    )
    manifest.write(folder, made)
    folder.rename(run.output_dir / ".x-step00000008-state.partial")
    state(run, "y", 1, 9).rename(run.output_dir / ".y-state.partial")
    assert newest(run) == 8
    assert not (run.output_dir / ".y-state.partial").exists()


def test_a_numbered_name_is_a_state_too(run: RunDir) -> None:
    """A fork numbers what it would otherwise overwrite."""
    state(run, "x-step00000004", 1, 4)
    state(run, "x-step00000008", 1, 8).rename(run.output_dir / "x-step00000004-state_001")
    assert newest(run) == 8


def test_what_a_kill_left_of_a_removal_is_cleared(run: RunDir) -> None:
    """It is whole no more, or soon would not have been."""
    state(run, "x-step00000008", 1, 8)
    state(run, "x-step00000004", 1, 4).rename(run.output_dir / ".x-step00000004-state.removed")
    assert newest(run) == 8
    assert not (run.output_dir / ".x-step00000004-state.removed").exists()


def test_pruning_keeps_what_is_resumed_from_and_all_that_is_newer(run: RunDir) -> None:
    """A newer state that this trainer cannot resume from must not push out the one that it can."""
    for step in (2, 5, 7, 9):
        state(run, f"x-step{step:08d}", 1, step)
    states.seal(run, PLAN, since=0)
    resumed = next(one for one in states.verified(run, PLAN, []) if one.true_step == 7)
    states.prune(run, resumed)
    assert sorted(path.name[-1] for path in run.states.iterdir()) == ["5", "7", "9"]


def test_pruning_never_takes_what_the_user_asked_for(run: RunDir) -> None:
    """With flags of the user's own only those go that fluxguard itself has asked for."""
    for step in (1, 2, 3, 4, 5):
        state(run, f"x-step{step:08d}", 1, step)
    states.seal(run, PLAN, since=0)
    for step in (2, 3):
        folder = run.states / f"step-{step:08d}"
        manifest.write(folder, replace(manifest.read(folder), asked=manifest.OURS))
    newest_one = next(iter(states.verified(run, PLAN, [])))
    states.prune(run, newest_one, own_cadence=False)
    assert sorted(path.name[-1] for path in run.states.iterdir()) == ["1", "4", "5"]


def test_pruning_keeps_a_whole_one_besides(run: RunDir) -> None:
    """A torn state is none to fall back to."""
    for step in (2, 5, 7):
        state(run, f"x-step{step:08d}", 1, step)
    states.seal(run, PLAN, since=0)
    (run.states / "step-00000005" / "optimizer.bin").unlink()
    states.prune(run, next(iter(states.verified(run, PLAN, []))))
    assert sorted(path.name[-1] for path in run.states.iterdir()) == ["2", "7"]


def test_only_as_many_are_read_as_are_needed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, an older one only when it is refused, and none that was read a moment ago."""
    read: list[str] = []
    whole = verdicts.verified

    def noted(folder: Path) -> manifest.Manifest:
        read.append(folder.name)
        return whole(folder)

    monkeypatch.setattr(verdicts, "verified", noted)
    for step in (2, 5, 7):
        state(run, f"x-step{step:08d}", 1, step)
    sealed = states.seal(run, PLAN, since=0)
    assert next(states.verified(run, PLAN, [], sealed.fresh)).true_step == 7
    assert read == []
    assert next(states.verified(run, PLAN, [])).true_step == 7
    assert read == ["step-00000007"]


def test_one_foreign_state_is_outvoted(run: RunDir) -> None:
    """What most states have in common is the run's network, whichever came first."""
    for step in (3, 6, 8):
        state(run, f"x-step{step:08d}", 1, step)
    save_file({"w": np.ones((5, 20))}, run.output_dir / "x-step00000003-state" / "model.safetensors")
    save_file({"w": np.ones((5, 20))}, run.output_dir / "x-step00000008-state" / "model.safetensors")
    state(run, "x-step00000007", 1, 7)
    state(run, "x-step00000005", 1, 5)
    assert newest(run) == 7
    assert {path.name for path in run.states.iterdir()} == {f"step-{step:08d}" for step in (3, 5, 6, 7)}


def test_of_two_that_differ_the_weights_decide(run: RunDir) -> None:
    """The run's own weights know its network; without them the older state is believed."""
    state(run, "x-step00000003", 1, 3)
    state(run, "x-step00000008", 1, 8)
    save_file({"w": np.ones((5, 20))}, run.output_dir / "x-step00000003-state" / "model.safetensors")
    save_file({"w": np.ones(100)}, run.output_dir / "x-000001.safetensors")
    assert newest(run) == 8
