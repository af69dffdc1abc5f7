"""A resumed training goes on at the true step, with the same order and the same noise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard.guard import resume
from fluxguard.guard.resume import Start, find_start
from fluxguard.manifest import Manifest


def manifest(step: int, epoch: int, batch: int, per_epoch: int = 10) -> Manifest:
    return Manifest(true_step=step, epoch=epoch, batch=batch, world_size=1, batches_per_epoch=per_epoch, files={})


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(None, Start(epoch=0, batch=0, step=0), id="a fresh training"),
        pytest.param(manifest(12, 2, 2), Start(epoch=1, batch=2, step=12), id="in the middle of an epoch"),
        pytest.param(manifest(20, 2, 10), Start(epoch=2, batch=0, step=20), id="at the end of an epoch"),
        pytest.param(manifest(12, 1, 12, 20), Start(epoch=1, batch=2, step=12), id="the dataset has changed"),
        pytest.param(manifest(12, 2, 0, 0), Start(epoch=1, batch=2, step=12), id="only the step is known"),
    ],
)
def test_the_manifest_says_where_to_go_on(known: Manifest | None, expected: Start) -> None:
    assert find_start(0, 0, 10, 1, known) == expected


@pytest.mark.parametrize(("per_epoch", "accumulation"), [(10, 1), (10, 2), (11, 2), (7, 4)])
def test_the_trainers_own_arithmetic_is_understood(per_epoch: int, accumulation: int) -> None:
    """Upstream divides batches by steps, and may arrive at a negative number: the true step is still in there."""
    steps_per_epoch = -(-per_epoch // accumulation)
    for step in range(31):
        batches = step * accumulation
        epoch = batches // steps_per_epoch
        if batches == epoch * per_epoch:
            continue  # nothing to skip
        start = find_start(epoch, batches - epoch * per_epoch, per_epoch, accumulation, None)
        assert start == Start(
            epoch=step // steps_per_epoch,
            batch=min(step % steps_per_epoch * accumulation, per_epoch),
            step=step,
        )


def test_without_skipping_the_trainer_starts_at_an_epoch() -> None:
    assert find_start(3, 0, 11, 2, None) == Start(epoch=3, batch=0, step=18)


@dataclass
class Recorder:
    """Random states that are names, and the order in which they were noted and set."""

    events: list[str] = field(default_factory=list)
    noted: int = 0

    def note(self) -> dict[str, Any]:
        self.noted += 1
        return {"name": f"noted {self.noted}"}

    def restore(self, states: dict[str, Any]) -> None:
        self.events.append(f"set {states['name']}")


class Loader:
    """A loader of ten batches with a dataset and a sampler as ours is."""

    def __init__(self, recorder: Recorder, *, workers: int, lasting: bool) -> None:
        self.num_workers = workers
        self.persistent_workers = lasting
        self.dataset = self
        self.events = recorder.events

    def set_current_epoch(self, epoch: int) -> None:
        self.events.append(f"epoch {epoch}")

    def __iter__(self) -> Iterator[int]:
        self.events.append("workers start")
        resume._sampler_starts(self)
        for batch in range(10):
            self.events.append(f"load {batch}")
            yield batch


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    known = Recorder()
    monkeypatch.setattr(resume, "random_states", known.note)
    monkeypatch.setattr(resume, "restore", known.restore)
    resume.begin_again()
    yield known
    resume.begin_again()


SAVED = {"base": {"name": "base"}, "order": {"name": "order"}, "now": {"name": "now"}}


def load(known: Manifest | None, states: Any = SAVED, told: tuple[int, int] | None = None) -> None:
    resume.loaded(resume.Loaded(folder=Path("state"), manifest=known, states=states, told=told))


def resumed(recorder: Recorder, known: Manifest, *, workers: int, lasting: bool) -> list[str]:
    """Return what happens before the first batch of the resumed epoch is trained."""
    load(known)
    epoch, skipped, step = resume.resume_point(1, 0, 0, 10, 1)
    assert (skipped, step) == (0, known.true_step)
    number, batch = next(resume.batches(Loader(recorder, workers=workers, lasting=lasting), epoch))
    assert number == batch == known.batch % 10
    return recorder.events


def test_a_fresh_epoch_sets_nothing(recorder: Recorder) -> None:
    assert resume.resume_point(0, 0, 0, 10, 1) == (0, 0, 0)
    assert len(list(resume.batches(Loader(recorder, workers=2, lasting=True), 0))) == 10
    assert recorder.events == ["workers start", *(f"load {batch}" for batch in range(10))]


LASTING = ["epoch 1", "set base", "workers start", "set order", "load 0", "load 1", "set now", "load 2"]


@pytest.mark.parametrize(
    ("known", "workers", "lasting", "expected"),
    [
        pytest.param(manifest(12, 2, 2), 2, True, LASTING, id="living workers"),
        pytest.param(manifest(12, 2, 2), 2, False, LASTING[1:], id="new workers"),
        pytest.param(manifest(12, 2, 2), 0, False, LASTING, id="no workers"),
        pytest.param(
            manifest(10, 1, 10), 2, True, ["epoch 1", "set base", "workers start", "set now", "load 0"],
            id="living workers, at an epoch's start",
        ),
        pytest.param(
            manifest(10, 1, 10), 2, False, ["set now", "workers start", "load 0"], id="new workers, at an epoch's start"
        ),
        pytest.param(
            manifest(2, 1, 2), 2, True, [*LASTING[1:]], id="in the first epoch no dataset is moved",
        ),
    ],
)  # fmt: skip
def test_the_recipe(recorder: Recorder, known: Manifest, workers: int, lasting: bool, expected: list[str]) -> None:
    assert resumed(recorder, known, workers=workers, lasting=lasting) == expected


def test_only_the_resumed_epoch_is_special(recorder: Recorder) -> None:
    load(manifest(12, 2, 2))
    epoch, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    loader = Loader(recorder, workers=2, lasting=True)
    assert [number for number, _ in resume.batches(loader, epoch)] == list(range(2, 10))
    recorder.events.clear()
    assert [number for number, _ in resume.batches(loader, epoch + 1)] == list(range(10))
    assert recorder.events == ["workers start", *(f"load {batch}" for batch in range(10))]


def test_a_state_without_random_states_still_goes_on_at_its_batch(recorder: Recorder) -> None:
    load(manifest(12, 2, 2), None)
    epoch, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    loader = Loader(recorder, workers=2, lasting=True)
    assert [batch for _, batch in resume.batches(loader, epoch)] == list(range(2, 10))


def test_the_position_counts_the_batches_of_all_attempts(recorder: Recorder) -> None:
    assert resume.position() is None
    load(manifest(12, 2, 2))
    epoch, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    seen = []
    for _ in resume.batches(Loader(recorder, workers=2, lasting=True), epoch):
        here = resume.position()
        assert here is not None
        seen.append((here.epoch, here.batch, here.step))
    assert (seen[0], seen[-1]) == ((2, 3, 13), (2, 10, 20))


def test_living_workers_keep_their_first_random_state(recorder: Recorder) -> None:
    resume.resume_point(0, 0, 0, 10, 1)
    loader = Loader(recorder, workers=2, lasting=True)
    for epoch in range(2):
        list(resume.batches(loader, epoch))
    saved = resume.states_to_save()
    assert saved["base"] == {"name": "noted 1"}
    assert saved["order"] == {"name": "noted 3"}


def args(planned: int = 40, accumulation: int = 1, **more: Any) -> SimpleNamespace:
    known = {"output_dir": "", "output_name": "lora", "save_model_as": "safetensors", "initial_step": None}
    return SimpleNamespace(
        **{**known, "initial_epoch": None, **more}, max_train_steps=planned, gradient_accumulation_steps=accumulation
    )


def weights(path: Path, *, size: int = 8) -> None:
    header = json.dumps({"__metadata__": {}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.fixture
def finished(recorder: Recorder, tmp_path: Path) -> Any:
    """The state of a finished training of 40 steps, loaded; its final weights are not there yet."""
    (tmp_path / "lora-state").mkdir()
    (tmp_path / "lora-state" / "optimizer.bin").touch()
    resume.loaded(resume.Loaded(folder=tmp_path / "lora-state", manifest=manifest(40, 4, 10), states=SAVED))
    return args(output_dir=str(tmp_path))


@pytest.mark.parametrize("told", [40, 10], ids=["a hardened trainer's count", "upstream's after a resume"])
def test_a_finished_training_says_so_and_ends_well(
    finished: Any, tmp_path: Path, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    weights(tmp_path / "lora.safetensors")
    with pytest.raises(SystemExit) as ended:
        resume.unless_finished(finished, told, 10)
    assert ended.value.code == 0
    assert "The training is finished: the state holds 40 steps and 40 are planned" in caplog.text


@pytest.mark.parametrize("case", ["missing", "cut", "no header", "of an earlier training"])
def test_a_finished_training_without_its_final_weights_only_writes_them(
    finished: Any, recorder: Recorder, tmp_path: Path, case: str
) -> None:
    final = tmp_path / "lora.safetensors"
    if case == "cut":
        weights(final, size=7)
    elif case == "no header":
        final.write_bytes(b"")
    elif case == "of an earlier training":
        weights(final)
        os.utime(final, (1.0, 1.0))
    assert resume.unless_finished(finished, 40, 10) < 40
    assert resume.resume_point(3, 0, 0, 10, 1) == (4, 0, 40)
    assert list(resume.epochs(4)) == [3]
    assert list(resume.batches(Loader(recorder, workers=2, lasting=True), 3)) == []
    here = resume.position()
    assert here is not None
    assert (here.epoch, here.batch, here.step, here.trained) == (4, 10, 40, False)
    assert resume.states_to_save() == SAVED
    assert recorder.events == []


def test_a_training_that_ends_in_mid_epoch_is_finished_there(recorder: Recorder) -> None:
    """Upstream would train on to the end of the epoch."""
    load(manifest(25, 3, 5))
    assert resume.unless_finished(args(25), 25, 10) < 25
    assert resume.resume_point(2, 0, 0, 10, 1) == (3, 0, 25)


def test_more_epochs_go_on_where_the_finished_training_ended(finished: Any, recorder: Recorder) -> None:
    finished.max_train_steps = 60
    assert resume.unless_finished(finished, 40, 10) == 40
    assert resume.resume_point(4, 0, 0, 10, 1) == (4, 0, 40)


@pytest.mark.parametrize(
    ("told", "accumulation", "expected"),
    [
        pytest.param((2, 12), 1, (1, 2, 12), id="of an undisturbed training"),
        pytest.param((3, 2), 1, (2, 2, 22), id="of one that had been resumed: its step is that of one attempt"),
        pytest.param((2, 10), 1, (2, 0, 20), id="at an epoch's end"),
        pytest.param((2, 5), 3, (1, 3, 5), id="accumulated"),
        pytest.param((2, 8), 3, (2, 0, 8), id="accumulated, at an epoch's end"),
    ],
)
def test_the_state_of_a_trainer_that_was_not_hardened_goes_on_at_its_true_step(
    recorder: Recorder,
    told: tuple[int, int],
    accumulation: int,
    expected: tuple[int, int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(None, None, told)
    assert resume.unless_finished(args(40, accumulation), told[1], 10) == expected[2]
    epoch, skipped, step = resume.resume_point(0, 0, 0, 10, accumulation)
    loader = Loader(recorder, workers=0, lasting=False)
    first = next(resume.batches(loader, epoch))[0]
    assert (epoch, skipped, step, first) == (expected[0], 0, expected[2], expected[1])
    assert "not those of an undisturbed training" in caplog.text


def test_a_state_that_says_nothing_is_counted_from_0(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    load(None, None)
    assert resume.unless_finished(args(), 0, 10) == 0
    assert resume.resume_point(0, 0, 0, 10, 1) == (0, 0, 0)
    assert "does not say how many steps" in caplog.text


def test_what_the_user_says_wins_over_a_state_without_manifest(recorder: Recorder) -> None:
    load(None, None, (2, 12))
    assert resume.unless_finished(args(initial_step=15), 15, 10) == 15
    assert resume.resume_point(1, 5, 5, 10, 1) == (1, 0, 15)


def test_a_manifest_wins_over_what_the_user_says(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    load(manifest(12, 2, 2))
    assert resume.unless_finished(args(initial_step=15), 15, 10) == 12
    assert "goes on at step 12, which the state holds, not at 15" in caplog.text


@pytest.mark.parametrize("flag", [{"initial_step": 0}, {"initial_epoch": 1}])
def test_a_user_may_count_from_0_upon_the_weights_of_a_state(recorder: Recorder, flag: dict[str, int]) -> None:
    load(manifest(40, 4, 10))
    assert resume.unless_finished(args(**flag), 0, 10) == 0
    assert resume.resume_point(0, 0, 0, 10, 1) == (0, 0, 0)
    assert [number for number, _ in resume.batches(Loader(recorder, workers=0, lasting=False), 0)] == list(range(10))


def test_a_trainer_that_counts_from_0_goes_on_as_well(recorder: Recorder) -> None:
    load(manifest(22, 3, 2))
    assert resume.bar(40) == {"total": 40, "initial": 22}
    assert resume.first_step(args(), 10) == 22
    assert resume.bar(40) == {"total": 40, "initial": 22}
    assert list(resume.epochs(4)) == [2, 3]
    loader = Loader(recorder, workers=0, lasting=False)
    assert [number for number, _ in resume.batches(loader, 2)] == list(range(2, 10))


def test_a_fresh_trainer_that_counts_from_0_does_so(recorder: Recorder) -> None:
    assert resume.bar(40) == {"total": 40, "initial": 0}
    assert resume.first_step(args(), 10) == 0
    assert list(resume.epochs(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4, 10, 11])
def test_every_step_of_all_attempts_is_counted_once(recorder: Recorder, accumulation: int) -> None:
    """An epoch's last step may embody fewer batches than the others."""
    resume.resume_point(0, 0, 0, 10, accumulation)
    loader = Loader(recorder, workers=2, lasting=True)
    step = 0
    for epoch in range(3):
        for number, _ in resume.batches(loader, epoch):
            step += (number + 1) % accumulation == 0 or number == 9
            here = resume.position()
            assert here is not None
            if (number + 1) % accumulation == 0 or number == 9:
                assert here.step == step


def test_the_losses_of_batches_never_seen_do_not_count() -> None:
    assert [resume.loss_slot(step, [0.5, 0.5]) for step in (0, 1, 2, 7)] == [0, 1, 2, 2]


class Common(Loader):
    """The loader of one of several processes: their common order comes from a generator that its sampler has."""

    def __init__(self, recorder: Recorder, *, lasting: bool) -> None:
        super().__init__(recorder, workers=2, lasting=lasting)
        self.generator = self
        self.drawn = 0

    def get_state(self) -> int:
        return self.drawn

    def set_state(self, state: int) -> None:
        self.drawn = state

    def __iter__(self) -> Iterator[int]:
        resume._sampler_starts(self)
        self.events.append(f"order {self.drawn}")
        self.drawn += 1
        yield from range(10)


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("saved", [2, 10], ids=["in mid-epoch", "at an epoch's end"])
def test_several_processes_go_on_with_their_common_order(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, saved: int, lasting: bool
) -> None:
    """Not with the order of the first epoch again, from which a fresh process's generator would begin."""
    monkeypatch.setattr(resume, "packed", lambda state: state)
    monkeypatch.setattr(resume, "tensor", lambda state: state)
    resume.resume_point(0, 0, 0, 10, 1)
    loader = Common(recorder, lasting=lasting)
    states = [resume.states_to_save() for epoch in range(2) for _ in resume.batches(loader, epoch)][9 + saved]
    resume.begin_again()
    recorder.events.clear()
    load(manifest(10 + saved, 2, saved), states)
    first, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    loader = Common(recorder, lasting=lasting)
    assert sum(1 for epoch in range(first, 4) for _ in resume.batches(loader, epoch)) == 30 - saved
    assert [event for event in recorder.events if event.startswith("order")] == [f"order {n}" for n in range(first, 4)]
