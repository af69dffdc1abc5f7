"""A state is whole or it is not there, and one that does not match its manifest is not loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard import limits, manifest
from fluxguard.errors import StateUnusable
from fluxguard.guard import resume, saves
from fluxguard.limits import Limits, WaitLimits

RANDOM_STATES = {"base": {"torch": "b"}, "order": {"torch": "o"}, "now": {"torch": "n"}}
HERE = resume.Position(epoch=2, batch=1, batches_per_epoch=10, step=11, trained=True)


class Accelerator:
    """Saves and loads as accelerate does, seen from outside."""

    is_main_process = True
    num_processes = 1
    distributed_type = "DistributedType.NO"

    def __init__(self) -> None:
        self.count = 11
        self.saved_into: list[str] = []
        self.loaded_from: list[str] = []
        self.fails: Callable[[], object] = lambda: None

    def save_state(self, folder: str) -> None:
        self.saved_into.append(folder)
        place = Path(folder)
        place.mkdir(exist_ok=True)
        (place / "train_state.json").write_text(json.dumps({"current_epoch": 2, "current_step": self.count}))
        self.fails()
        (place / "model.safetensors").write_bytes(b"weights" * self.count)

    def load_state(self, folder: str) -> None:
        self.loaded_from.append(folder)
        self.fails()


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    resume.begin_again()
    monkeypatch.setattr(resume, "states_to_save", lambda: RANDOM_STATES)
    monkeypatch.setattr(resume, "position", lambda: HERE)
    yield Accelerator()
    resume.begin_again()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_state_verifies_and_says_what_it_holds(accelerator: Accelerator, tmp_path: Path) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")
    known = manifest.verify(tmp_path / "a-state")
    assert (known.true_step, known.epoch, known.batch, known.batches_per_epoch, known.world_size) == (11, 2, 1, 10, 1)
    assert set(known.files) == {"train_state.json", "model.safetensors", saves.RANDOM}
    assert names(tmp_path) == ["a-state"]


def test_a_state_is_written_aside(accelerator: Accelerator, tmp_path: Path) -> None:
    saves.save_state(accelerator, str(tmp_path / "a-state"))
    assert accelerator.saved_into == [str(tmp_path / ".a-state.partial")]


def test_a_state_replaces_one_of_its_name_whole(accelerator: Accelerator, tmp_path: Path) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")
    (tmp_path / "a-state" / "foreign").touch()
    accelerator.count = 21
    saves.save_state(accelerator, tmp_path / "a-state")
    assert manifest.verify(tmp_path / "a-state").true_step == 21
    assert names(tmp_path) == ["a-state"]
    assert "foreign" not in names(tmp_path / "a-state")


def test_a_save_that_fails_keeps_the_old_state_and_frees_its_room(accelerator: Accelerator, tmp_path: Path) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")

    def full() -> None:
        raise OSError(28, "No space left on device")

    accelerator.fails = full
    with pytest.raises(OSError, match="No space"):
        saves.save_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path) == ["a-state"]
    assert manifest.verify(tmp_path / "a-state").true_step == 11


def test_what_a_kill_left_of_a_save_is_cleared_by_the_next(accelerator: Accelerator, tmp_path: Path) -> None:
    (tmp_path / ".a-state.partial").mkdir()
    (tmp_path / ".a-state.partial" / "half").touch()
    saves.save_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path) == ["a-state"]
    assert "half" not in names(tmp_path / "a-state")


def test_a_count_that_is_missing_is_counted_from_the_batches(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "position", lambda: replace(HERE, epoch=3, batch=3, step=14))
    accelerator.fails = lambda: (tmp_path / ".a-state.partial" / "train_state.json").unlink()
    saves.save_state(accelerator, tmp_path / "a-state")
    assert manifest.read(tmp_path / "a-state").true_step == 14


def test_a_loop_that_is_not_ours_saves_without_a_manifest(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "position", lambda: None)
    saves.save_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path / "a-state") == ["model.safetensors", "train_state.json"]


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is handed to the resume."""
    seen: list[Any] = []
    monkeypatch.setattr(resume, "loaded", seen.append)
    return seen


class Ticking:
    """A clock on which a wait costs nothing, and something happens after a while."""

    def __init__(self, after: float = 0.0, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.after, self.then = 0.0, after, then

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.after and self.now >= self.after:
            self.after = 0.0
            self.then()


class Second(Accelerator):
    """The second of two processes."""

    is_main_process = False
    process_index = 1
    num_processes = 2


def test_another_process_adds_its_random_states_once_the_first_has_saved(
    accelerator: Accelerator, tmp_path: Path, handed_over: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "a-state"
    clock = Ticking(3.0, lambda: saves.save_state(accelerator, state))
    second = Second()
    own = {"base": None, "order": {"torch": "o2"}, "now": {"torch": "n2"}}
    monkeypatch.setattr(resume, "states_to_save", lambda: RANDOM_STATES if clock.after == 0.0 else own)
    saves.save_state(second, state, clock)
    assert second.saved_into == []
    assert manifest.verify(state).true_step == 11
    saves.load_state(second, state)
    assert handed_over[0].states == {"order": {"torch": "o2"}, "now": {"torch": "n2"}}


@pytest.mark.usefixtures("accelerator")
def test_another_process_does_not_wait_for_ever_for_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits._process, "limits", Limits(wait=WaitLimits(barrier=5.0)))
    clock = Ticking()
    saves.save_state(Second(), tmp_path / "a-state", clock)
    assert 5.0 < clock.now < 6.0
    assert names(tmp_path) == []
    assert "the random states of process 1 are not in it" in caplog.text


def test_another_process_of_a_loop_that_is_not_ours_waits_for_nothing(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "position", lambda: None)
    saves.save_state(Second(), tmp_path / "a-state", Ticking())
    assert names(tmp_path) == []


def test_a_process_without_random_states_of_its_own_takes_those_of_the_first(
    accelerator: Accelerator, tmp_path: Path, handed_over: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Most trainers let the first process save alone."""
    saves.save_state(accelerator, tmp_path / "a-state")
    saves.load_state(Second(), tmp_path / "a-state")
    assert handed_over[0].states == RANDOM_STATES
    assert "no random states of process 1" in caplog.text


def test_the_trainers_own_file_says_the_true_step(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a first batch is trained its trainer's count is that of nothing; other keys stay."""
    monkeypatch.setattr(resume, "position", lambda: replace(HERE, batch=10, step=20, trained=False))
    saves.save_state(accelerator, tmp_path / "a-state")
    told = json.loads((tmp_path / "a-state" / "train_state.json").read_text())
    assert told == {"current_epoch": 2, "current_step": 20}
    assert manifest.verify(tmp_path / "a-state").true_step == 20


def saved(accelerator: Accelerator, folder: Path) -> Path:
    saves.save_state(accelerator, folder)
    return folder


def test_an_old_state_goes_when_the_new_one_verifies(accelerator: Accelerator, tmp_path: Path) -> None:
    old, new = saved(accelerator, tmp_path / "1-state"), saved(accelerator, tmp_path / "2-state")
    saves.remove_state(str(old), str(new))
    assert names(tmp_path) == ["2-state"]


def test_the_state_that_was_just_saved_is_never_removed(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's --save_last_n_epochs 0 asks for that."""
    state = saved(accelerator, tmp_path / "1-state")
    saves.remove_state(state, state)
    monkeypatch.chdir(tmp_path)
    saves.remove_state("1-state", state)
    (tmp_path / "link").symlink_to(tmp_path)
    saves.remove_state(tmp_path / "link" / "1-state", state)
    assert manifest.verify(state)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "no manifest"])
def test_an_old_state_stays_when_the_new_one_does_not_verify(
    accelerator: Accelerator, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = saved(accelerator, tmp_path / "1-state"), saved(accelerator, tmp_path / "2-state")
    weights = new / "model.safetensors"
    if damage == "missing":
        shutil.rmtree(new)
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flipped":
        weights.write_bytes(b"x" + weights.read_bytes()[1:])
    else:
        (new / manifest.NAME).unlink()
    saves.remove_state(old, new)
    assert manifest.verify(old)
    assert "1-state is kept" in caplog.text


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_like_a_state(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = saved(accelerator, tmp_path / "1-state"), saved(accelerator, tmp_path / "2-state")

    def killed(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            saves.remove_state(old, new)
    assert names(tmp_path) == [".1-state.removed", "2-state"]
    saves.remove_state(saved(accelerator, tmp_path / "3-state"), new)
    assert names(tmp_path) == ["2-state"]


def test_an_old_state_that_cannot_be_removed_costs_a_warning(
    accelerator: Accelerator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = saved(accelerator, tmp_path / "2-state")
    saves.remove_state(tmp_path / "1-state", new)
    assert "1-state could not be removed" in caplog.text


@pytest.mark.parametrize("left", [(".a-state.partial",), (".a-state.old",), (".a-state.partial", ".a-state.old")])
def test_a_state_between_the_two_renames_of_a_save_is_found(
    accelerator: Accelerator, tmp_path: Path, left: tuple[str, ...]
) -> None:
    for name in left:
        shutil.copytree(saved(accelerator, tmp_path / "a-state"), tmp_path / name)
        shutil.rmtree(tmp_path / "a-state")
    saves.load_state(accelerator, tmp_path / "a-state")
    assert manifest.verify(tmp_path / "a-state").true_step == 11


def test_a_state_that_is_there_is_not_replaced_by_an_unfinished_one(accelerator: Accelerator, tmp_path: Path) -> None:
    shutil.copytree(saved(accelerator, tmp_path / "a-state"), tmp_path / ".a-state.partial")
    saves.load_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path) == [".a-state.partial", "a-state"]


def test_a_collective_save_is_left_to_accelerate(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.distributed_type = "DistributedType.DEEPSPEED"
    accelerator.is_main_process = False
    saves.save_state(accelerator, tmp_path / "a-state")
    assert accelerator.saved_into == [str(tmp_path / "a-state")]


def test_a_loaded_state_hands_over_what_it_knows(
    accelerator: Accelerator, tmp_path: Path, handed_over: list[Any]
) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")
    saves.load_state(accelerator, tmp_path / "a-state")
    assert accelerator.loaded_from == [str(tmp_path / "a-state")]
    state = tmp_path / "a-state"
    assert handed_over == [
        resume.Loaded(folder=state, manifest=manifest.read(state), states=RANDOM_STATES, told=(2, 11))
    ]


def test_a_state_that_is_not_what_was_saved_is_not_loaded(accelerator: Accelerator, tmp_path: Path) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")
    weights = tmp_path / "a-state" / "model.safetensors"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    with pytest.raises(StateUnusable, match=r"model\.safetensors is not what was saved"):
        saves.load_state(accelerator, tmp_path / "a-state")
    assert accelerator.loaded_from == []


def test_a_state_of_an_unhardened_trainer_is_loaded_as_it_is(
    accelerator: Accelerator, tmp_path: Path, handed_over: list[Any]
) -> None:
    accelerator.save_state(str(tmp_path / "a-state"))
    saves.load_state(accelerator, tmp_path / "a-state")
    assert handed_over == [resume.Loaded(folder=tmp_path / "a-state", manifest=None, states=None, told=(2, 11))]


class LateAccelerator(Accelerator):
    """accelerate 0.33 with torch 2.6: everything is loaded, then an entry is missing."""

    key = "step"

    def load_state(self, folder: str) -> None:
        super().load_state(folder)
        nothing: dict[str, int] = {}
        self.step = nothing[self.key]


@pytest.mark.usefixtures("accelerator")
def test_the_late_fault_of_accelerate_is_tolerated(tmp_path: Path, handed_over: list[Any]) -> None:
    saves.load_state(LateAccelerator(), tmp_path)
    assert handed_over == [resume.Loaded(folder=tmp_path, manifest=None, states=None)]


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("fault", ["another key", "deeper inside", "objects not loaded yet"])
def test_no_other_fault_is(fault: str, tmp_path: Path, handed_over: list[Any]) -> None:
    late: Any = LateAccelerator()
    if fault == "another key":
        late.key = "optimizer"
    elif fault == "objects not loaded yet":
        late._custom_objects = [object()]
    else:
        late.fails = lambda: dict[str, int]()["step"]
    with pytest.raises(KeyError):
        saves.load_state(late, tmp_path)
    assert handed_over == []
