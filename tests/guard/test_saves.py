"""A state is whole or it is not there, and one that does not match its manifest is not loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.guard import resume, saves

RANDOM_STATES = {"base": {"torch": "b"}, "order": {"torch": "o"}, "now": {"torch": "n"}}


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
    monkeypatch.setattr(
        resume, "position", lambda: resume.Position(epoch=2, batch=1, batches_per_epoch=10, accumulation=1)
    )
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
    monkeypatch.setattr(
        resume, "position", lambda: resume.Position(epoch=3, batch=3, batches_per_epoch=11, accumulation=2)
    )
    accelerator.fails = lambda: (tmp_path / ".a-state.partial" / "train_state.json").unlink()
    saves.save_state(accelerator, tmp_path / "a-state")
    assert manifest.read(tmp_path / "a-state").true_step == 14


def test_a_loop_that_is_not_ours_saves_without_a_manifest(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "position", lambda: None)
    saves.save_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path / "a-state") == ["model.safetensors", "train_state.json"]


def test_only_the_first_process_saves(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.is_main_process = False
    saves.save_state(accelerator, tmp_path / "a-state")
    assert names(tmp_path) == []


def test_a_collective_save_is_left_to_accelerate(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.distributed_type = "DistributedType.DEEPSPEED"
    accelerator.is_main_process = False
    saves.save_state(accelerator, tmp_path / "a-state")
    assert accelerator.saved_into == [str(tmp_path / "a-state")]


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is handed to the resume."""
    seen: list[Any] = []
    monkeypatch.setattr(resume, "loaded", lambda *given: seen.extend(given))
    return seen


def test_a_loaded_state_hands_over_what_it_knows(
    accelerator: Accelerator, tmp_path: Path, handed_over: list[Any]
) -> None:
    saves.save_state(accelerator, tmp_path / "a-state")
    saves.load_state(accelerator, tmp_path / "a-state")
    assert accelerator.loaded_from == [str(tmp_path / "a-state")]
    assert handed_over == [manifest.read(tmp_path / "a-state"), RANDOM_STATES]


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
    assert handed_over == [None, None]


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
    assert handed_over == [None, None]


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
