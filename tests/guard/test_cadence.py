"""States besides those that the user asked for: often enough, not too dear, and never at the training's cost."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard import limits, manifest
from fluxguard.guard import cadence, pulse, resume, saves
from fluxguard.limits import Limits, SaveLimits

HERE = resume.Position(epoch=2, batch=3, batches_per_epoch=10, step=13, trained=True)
EVERY = SaveLimits()


class Clock:
    """Time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Accelerator:
    """Saves as accelerate does, seen from outside; a save takes `takes` seconds."""

    is_main_process = True
    num_processes = 1
    distributed_type = "DistributedType.NO"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes = clock, 1.0
        self.fails: Callable[[], object] = lambda: None

    def save_state(self, folder: str) -> None:
        self.clock.sleep(self.takes)
        self.fails()
        Path(folder).mkdir()
        step = position().step
        (Path(folder) / "train_state.json").write_text(json.dumps({"current_epoch": 2, "current_step": step}))
        (Path(folder) / "model.safetensors").write_bytes(bytes(1000))


def position() -> resume.Position:
    """Return where the training is."""
    found = resume.position()
    assert found is not None
    return found


class Training:
    """A training that is asked after each of its steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.here = Clock(), HERE
        self.accelerator = Accelerator(self.clock)
        self.folder = folder
        self.args = SimpleNamespace(
            output_dir=str(folder), output_name="mini", max_train_steps=1000, save_state=False, save_every_n_epochs=None
        )
        monkeypatch.setattr(resume, "position", lambda: self.here)
        monkeypatch.setattr(resume, "states_to_save", lambda: {"base": None, "order": None, "now": {"torch": "n"}})

    def step(self, seconds: float, **changes: Any) -> None:
        """Train a step that takes so long, and ask."""
        self.clock.sleep(seconds)
        self.here = replace(self.here, **{"step": self.here.step + 1, "batch": 3, **changes})
        cadence.save_if_due(self.accelerator, self.args, self.here.step, self.clock)

    @property
    def saved(self) -> list[int]:
        """The steps of the states that lie there."""
        return sorted(manifest.verify(path).true_step for path in self.folder.glob("*-state"))


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """A supervised training of one process."""
    cadence.begin_again()
    resume.begin_again()
    monkeypatch.setattr(saves, "_newest", saves._Newest())
    monkeypatch.setattr(pulse, "heart", lambda: object())
    monkeypatch.setattr(pulse, "during", _Phase)
    yield Training(tmp_path, monkeypatch)
    cadence.begin_again()
    resume.begin_again()


class _Phase:
    def __init__(self, _: str) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("elapsed", "pause", "spent", "cost", "at_epoch_end", "due"),
    [
        (599.0, 599.0, 0.0, 0.0, False, False),
        (600.0, 600.0, 0.0, 0.0, False, True),
        (10.0, 10.0, 0.0, 0.0, True, True),
        (10.0, 10.0, 4.0, 1.0, True, True),  # what is free
        (10.0, 10.0, 5.0, 1.0, True, False),
        (600.0, 600.0, 0.0, 11.0, False, True),
        (1200.0, 600.0, 11.0, 11.0, False, False),  # the cost comes before the ten minutes
        (1700.0, 1100.0, 11.0, 11.0, False, True),
        (86400.0, 600.0, 900.0, 10.0, False, False),
    ],
)
def test_a_state_is_due_when_it_is_time_and_affordable(
    elapsed: float, pause: float, spent: float, cost: float, at_epoch_end: bool, due: bool
) -> None:
    """Ten minutes and epoch ends, within a hundredth of the time and five seconds."""
    found = cadence.is_due(EVERY, elapsed=elapsed, pause=pause, spent=spent, cost=cost, at_epoch_end=at_epoch_end)
    assert found is due


@pytest.mark.parametrize("takes", [0.1, 3.0, 10.0, 60.0])
def test_saving_takes_no_more_than_its_share_of_a_long_training(takes: float) -> None:
    """Whatever a save takes, short epochs included; and where that allows it, no ten minutes pass without one."""
    now, saved = 0.0, [0.0]
    for number in range(20_000):
        now += 10.0
        pause, spent, cost = now - saved[-1], takes * (len(saved) - 1), takes if len(saved) > 1 else 0.0
        epoch_end = number % 7 == 0
        if cadence.is_due(EVERY, elapsed=now, pause=pause, spent=spent, cost=cost, at_epoch_end=epoch_end):
            now += takes
            saved.append(now)
    assert takes * (len(saved) - 1) <= 0.01 * now + 5.0 + takes
    assert len(saved) > 30
    if takes <= 3.0:
        assert max(after - before for before, after in itertools.pairwise(saved)) <= 620.0


def test_the_limits_of_the_run_hold(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limits file can ask for more, or for none at all."""
    monkeypatch.setattr(limits, "current", lambda: Limits(save=SaveLimits(every=2.0, share=None)))
    for _ in range(6):
        training.step(1.5)
    assert len(training.saved) == cadence.KEPT
    monkeypatch.setattr(limits, "current", lambda: Limits(save=SaveLimits(every=None)))
    before = training.saved
    for _ in range(6):
        training.step(1000.0)
    assert training.saved == before


def test_the_newest_two_stay_and_say_who_asked(training: Training) -> None:
    """Older ones of ours go; one that the user asked for stays."""
    saves.save_state(training.accelerator, training.folder / "mini-step00000013-state", training.clock)
    for _ in range(4):
        training.step(700.0)
    assert training.saved == [13, 16, 17]
    asked = {manifest.read(path).true_step: manifest.read(path).asked for path in training.folder.glob("*-state")}
    assert asked == {13: "", 16: manifest.OURS, 17: manifest.OURS}


def test_a_state_that_the_trainer_has_just_saved_counts(training: Training) -> None:
    """Neither the same step twice, nor soon after it."""
    training.step(1.0)
    training.clock.sleep(700)
    saves.save_state(training.accelerator, training.folder / "mini-step00000014-state", training.clock)
    cadence.save_if_due(training.accelerator, training.args, training.here.step, training.clock)
    training.step(300.0)
    assert training.saved == [14]
    training.step(400.0)
    assert training.saved == [14, 16]


def test_an_epoch_end_that_the_trainer_saves_itself_is_left_to_it(training: Training) -> None:
    """With the user's own states at epochs there are not two of the same step."""
    training.args.save_state, training.args.save_every_n_epochs = True, 2
    training.step(1.0, batch=10, epoch=2)
    assert training.saved == []
    training.step(1.0, batch=10, epoch=3)
    assert training.saved == [15]


def test_nothing_is_saved_when_nothing_is_left_to_train(training: Training) -> None:
    """The final weights follow."""
    training.args.max_train_steps = 14
    training.step(700.0, batch=10)
    assert training.saved == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")])
def test_a_save_that_fails_costs_a_warning_only(
    training: Training, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The training goes on, nothing half lies there, and it is tried again when it is time."""

    def fail() -> None:
        raise error

    training.accelerator.fails = fail
    training.step(0.0)
    training.step(700.0)
    assert "could not be saved" in caplog.text
    assert list(training.folder.iterdir()) == []
    training.accelerator.fails = lambda: None
    training.step(300.0)
    assert training.saved == []
    training.step(400.0)
    assert training.saved == [17]


def test_a_disk_that_is_nearly_full_is_left_to_the_weights(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A state of ours must not be what fills it."""
    training.step(0.0)
    training.step(700.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1500))
    training.step(700.0)
    assert training.saved == [15]
    assert "no state is saved" in caplog.text


@pytest.mark.parametrize("what", ["no supervisor", "not the first process", "each saves a part", "a foreign loop"])
def test_where_it_is_not_ours_nothing_is_saved(training: Training, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Without a supervisor the trainer does what its flags say, and no more."""
    if what == "no supervisor":
        monkeypatch.setattr(pulse, "heart", lambda: None)
    elif what == "not the first process":
        training.accelerator.is_main_process = False
    elif what == "each saves a part":
        training.accelerator.distributed_type = "DistributedType.DEEPSPEED"
    else:
        monkeypatch.setattr(resume, "position", lambda: None)
    for _ in range(3):
        training.step(5000.0, batch=10)
    assert list(training.folder.iterdir()) == []
