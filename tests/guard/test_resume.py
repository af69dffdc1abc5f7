"""A resumed training goes on at the true step, with the same order and the same noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
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


def resumed(recorder: Recorder, known: Manifest, *, workers: int, lasting: bool) -> list[str]:
    """Return what happens before the first batch of the resumed epoch is trained."""
    resume.loaded(known, SAVED)
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
    resume.loaded(manifest(12, 2, 2), SAVED)
    epoch, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    loader = Loader(recorder, workers=2, lasting=True)
    assert [number for number, _ in resume.batches(loader, epoch)] == list(range(2, 10))
    recorder.events.clear()
    assert [number for number, _ in resume.batches(loader, epoch + 1)] == list(range(10))
    assert recorder.events == ["workers start", *(f"load {batch}" for batch in range(10))]


def test_a_state_without_random_states_still_goes_on_at_its_batch(recorder: Recorder) -> None:
    resume.loaded(manifest(12, 2, 2), None)
    epoch, _, _ = resume.resume_point(1, 0, 0, 10, 1)
    loader = Loader(recorder, workers=2, lasting=True)
    assert [batch for _, batch in resume.batches(loader, epoch)] == list(range(2, 10))


def test_the_position_counts_the_batches_of_all_attempts(recorder: Recorder) -> None:
    assert resume.position() is None
    resume.loaded(manifest(12, 2, 2), SAVED)
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


TRAINER = """
import random, sys
import numpy, torch
from pathlib import Path
from accelerate import Accelerator
import fluxguard
from fluxguard.guard import resume

class Data:
    epoch = 0
    order = list(range(7))
    def __len__(self): return 7
    def __getitem__(self, index):
        return torch.tensor([float(self.order[index]), random.random() if flips else 0.5, 1.0])
    def set_current_epoch(self, epoch):
        while self.epoch < epoch:
            self.epoch += 1
            random.seed(self.epoch)
            random.shuffle(self.order)

def collate(examples):
    info = torch.utils.data.get_worker_info()
    (info.dataset if info else data).set_current_epoch(now.value)
    return examples[0]

workers, lasting, gas, kill_at, flips = map(int, sys.argv[1:6])
state = sys.argv[6]
import multiprocessing
now = multiprocessing.Value("i", 0)
data = Data()
data.order = list(range(7))
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=gas)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = fluxguard.DataLoader(data, batch_size=1, shuffle=True, collate_fn=collate, num_workers=workers,
                              persistent_workers=bool(lasting))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if Path(state).exists():
    fluxguard.load_state(accelerator, state)
first, _, step = fluxguard.resume_point(0, 0, 0, len(loader), gas)
for epoch in range(first, 4):
    now.value = epoch + 1
    for _, batch in fluxguard.batches(loader, epoch):
        with accelerator.accumulate(model):
            noise = torch.rand(3) + numpy.random.rand()
            accelerator.backward((model(batch + noise) ** 2).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if step == kill_at:
                fluxguard.save_state(accelerator, state)
                import os; os._exit(9)
print(step, [parameter.flatten().tolist() for parameter in model.parameters()])
"""


@pytest.mark.integration
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("workers", "lasting", "accumulation", "kill_at", "flips"),
    [(2, 1, 1, 17, 1), (2, 1, 1, 14, 0), (2, 0, 1, 17, 1), (0, 0, 1, 10, 1), (2, 1, 2, 10, 1), (0, 0, 2, 8, 1)],
    ids=["living", "living, at an epoch's end", "new", "none", "accumulated", "accumulated, at an epoch's end"],
)
def test_a_killed_and_resumed_training_is_equal_to_the_undisturbed_one(
    spawn: Any, tmp_path: Path, workers: int, lasting: int, accumulation: int, kill_at: int, flips: int
) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)

    def train(kill: int, state: str) -> str:
        trainer = spawn(script, workers, lasting, accumulation, kill, flips, tmp_path / state)
        assert trainer.ends() == (9 if kill else 0), trainer.output
        return trainer.output.strip().splitlines()[-1] if not kill else ""

    undisturbed = train(0, "none")
    train(kill_at, "state")
    assert train(0, "state") == undisturbed
