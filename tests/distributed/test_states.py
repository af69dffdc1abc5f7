"""Laws of states: what goes on from one ends with the same bits, and under its name there is a whole one or none."""

from __future__ import annotations

import errno
import json
import logging
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fluxguard import distributed, manifest
from fluxguard.distributed import world
from fluxguard.distributed.saving import places, plain, sealing, states
from fluxguard.errors import InputError, StateUnusable
from fluxguard.guard.randoms import random_states, restore

STEPS = 6


@pytest.fixture(autouse=True)
def _unmoved() -> Any:
    before = random_states()
    yield
    restore(before)


class Training:
    """A training that draws from every source of random numbers, with all that a state can hold."""

    def __init__(self) -> None:
        distributed.seed(3)
        self.model = distributed.wrap(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.parts: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
        }
        self.step = 0

    def train(self, until: int) -> None:
        while self.step < until:
            loss = self.model(torch.randn(8, 4)).sum() * random.random()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.step += 1

    def save(self, folder: Path, **more: Any) -> Path:
        return states.save_state(folder, step=self.step, epoch=1, batch=self.step, **self.parts, **more)

    def load(self, state: Path | None) -> states.Resumed:
        at = states.load_state(state, **self.parts)
        self.step = at.step
        return at

    def bits(self) -> list[float]:
        return [
            *torch.cat([one.flatten().double() for one in self.model.state_dict().values()]).tolist(),
            random.random(),
        ]


def test_what_goes_on_from_a_state_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Weights, statistics, moments, learning rate, loss scale and every source of random numbers."""
    whole = Training()
    whole.train(STEPS)
    expected = whole.bits()
    cut = Training()
    cut.train(3)
    cut.save(tmp_path, values={"losses": [0.5, (1, 2)]}, own={"seen": 24})
    cut.train(5)
    random.seed(99)
    torch.manual_seed(99)
    resumed = Training()
    at = resumed.load(distributed.newest_state(tmp_path))
    assert (at.step, at.epoch, at.batch, at.exact) == (3, 1, 3, True)
    assert at.values == {"losses": [0.5, (1, 2)]}
    assert at.own == {"seen": 24}
    resumed.train(STEPS)
    assert resumed.bits() == expected
    assert resumed.scaler.get_scale() == whole.scaler.get_scale() > 1024.0


def test_without_a_state_a_training_begins(tmp_path: Path) -> None:
    """The same call, and nothing is loaded."""
    training = Training()
    before = training.bits()
    training.load(None)
    at = training.load(distributed.newest_state(tmp_path / "not there yet"))
    assert (at.step, at.epoch, at.batch, at.values) == (0, 0, 0, {})
    assert training.bits()[:-1] == before[:-1]


@pytest.mark.parametrize("damage", ["cut", "bit", "gone", "manifest", "link", "folder"])
@pytest.mark.parametrize("name", [sealing.MODEL, "trainer.json", "rank-0.json"])
def test_a_damaged_state_is_passed_over_and_named(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever file, however; it stays where it is, and the one before is used."""
    training = Training()
    kept = training.save(tmp_path)
    training.train(1)
    newest = training.save(tmp_path)
    hurt(newest, name, damage)
    with caplog.at_level(logging.WARNING):
        assert distributed.newest_state(tmp_path) == kept
    assert "passed over: step 1" in caplog.text
    assert newest.exists()
    with pytest.raises(StateUnusable):
        training.load(newest)


def hurt(state: Path, name: str, damage: str) -> None:
    """Damage a file of a state."""
    path = state / ("fluxguard-manifest.json" if damage == "manifest" else name)
    content = path.read_bytes()
    if damage in ("cut", "manifest"):
        path.write_bytes(content[:-5])
    elif damage == "bit":
        path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    else:
        path.unlink()
        if damage == "link":
            path.symlink_to(shutil.copy(state / "fluxguard-manifest.json", state.parent / "elsewhere"))
        elif damage == "folder":
            path.mkdir()


@pytest.mark.parametrize("when", ["written", "moved aside"])
def test_a_kill_in_the_middle_of_a_save_leaves_a_whole_state(tmp_path: Path, when: str) -> None:
    """What it left behind is cleared away, or given its name again."""
    training = Training()
    state = training.save(tmp_path)
    half = tmp_path / ".step-00000000.partial"
    if when == "written":
        half.mkdir()
        (half / "model.safetensors").write_bytes(b"half")
    else:
        state.rename(tmp_path / ".step-00000000.old")
    assert distributed.newest_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [state.name]


def test_what_is_called_only_almost_like_ours_is_left_alone(tmp_path: Path) -> None:
    """It is somebody else's."""
    for name in (".step-final.partial", ".step-1.old"):
        (tmp_path / name).mkdir()
    assert distributed.newest_state(tmp_path) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_state_saved_again_replaces_the_one_before(tmp_path: Path) -> None:
    """Whatever that was."""
    training = Training()
    state = training.save(tmp_path)
    before = sealing.identity(state)
    hurt(state, sealing.MODEL, "cut")
    assert training.save(tmp_path) == state == distributed.newest_state(tmp_path)
    assert sealing.identity(state) != before


def test_a_full_disk_is_an_error_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room is free again."""
    training = Training()
    state = training.save(tmp_path)
    training.train(1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(manifest, "write", full)
    with pytest.raises(OSError, match="no space"):
        training.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [state.name]


def test_the_newest_of_our_own_are_kept(tmp_path: Path) -> None:
    """Not what is of somebody else, nor what is damaged, nor what embodies more steps; a damaged one does not count."""
    training = Training()
    foreign = tmp_path / "step-00000000"
    foreign.mkdir()
    (foreign / "precious").touch()
    for step in (1, 2, 3, 4, 9):
        training.step = step
        training.save(tmp_path, keep=None)
    hurt(tmp_path / "step-00000003", sealing.MODEL, "cut")
    training.step = 5
    training.save(tmp_path, keep=2)
    assert [int(path.name[-1]) for path in sorted(tmp_path.iterdir())] == [0, 3, 4, 5, 9]


@pytest.mark.parametrize(("name", "value"), [("step", -1), ("epoch", 1.5), ("batch", "3")])
def test_a_position_is_a_whole_number(tmp_path: Path, name: str, value: object) -> None:
    """Named when it is not."""
    training = Training()
    position: dict[str, Any] = {"step": 1, "epoch": 0, "batch": 1, name: value}
    with pytest.raises(InputError, match=f"save_state: {name}: must be"):
        distributed.save_state(tmp_path, model=training.model, **position)


def test_what_no_state_can_hold_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    """By its place."""
    with pytest.raises(InputError, match=r"trainer\.values\.callback"):
        Training().save(tmp_path, values={"callback": print})
    with pytest.raises(InputError, match="own"):
        Training().save(tmp_path, own={"tensor": torch.ones(1)})
    with pytest.raises(InputError, match="do not fit"):
        Training().save(tmp_path, own={"text": "long" * states._LARGEST})
    assert not list(tmp_path.iterdir())


def test_a_state_that_does_not_fit_names_what(tmp_path: Path) -> None:
    """Another network, another optimizer, or one that was not saved."""
    training = Training()
    state = training.save(tmp_path)
    with pytest.raises(InputError, match="lacks bias and 1 more"):
        distributed.load_state(state, model=nn.Linear(4, 8))
    other = torch.optim.SGD([*training.model.parameters(), nn.Parameter(torch.ones(1))])
    with pytest.raises(InputError, match="its optimizer does not fit"):
        distributed.load_state(state, model=training.model, optimizer=other)
    bare = distributed.save_state(tmp_path, step=9, epoch=0, batch=0, model=training.model)
    with pytest.raises(InputError, match="holds no optimizer"):
        distributed.load_state(bare, model=training.model, optimizer=training.optimizer)


def test_a_state_is_read_to_the_last_byte_before_anything_is_loaded(tmp_path: Path) -> None:
    """Also one that was named by hand."""
    training = Training()
    state = training.save(tmp_path)
    before = training.bits()
    hurt(state, "trainer.safetensors", "bit")
    with pytest.raises(StateUnusable, match="digest differs"):
        training.load(state)
    assert training.bits()[:-1] == before[:-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "[" * 200_000 + "]" * 200_000,
        lambda _: "[]",
        lambda told: json.dumps({**told, "identity": "x" * 3000}),
        lambda told: json.dumps({**told, "identity": 3}),
        lambda told: json.dumps({name: value for name, value in told.items() if name != "identity"}),
    ],
)
def test_a_foreign_state_is_passed_over_like_a_damaged_one(tmp_path: Path, change: Any) -> None:
    """With a manifest that is right, and what no state of ours says: nobody fails alone over it."""
    training = Training()
    kept = training.save(tmp_path)
    training.train(1)
    foreign = forge(training.save(tmp_path), change)
    assert distributed.newest_state(tmp_path) == kept
    with pytest.raises(StateUnusable, match=r"trainer\.json cannot be read"):
        training.load(foreign)


def test_a_state_that_lacks_what_each_has_is_unusable(tmp_path: Path) -> None:
    """That is said, and what it lacks."""
    training = Training()
    state = forge(
        training.save(tmp_path), lambda told: json.dumps({name: told[name] for name in told if name != "model"})
    )
    with pytest.raises(StateUnusable, match="lacks model"):
        training.load(state)


def forge(state: Path, change: Any) -> Path:
    """Let a state say something else, with a manifest that vouches for it."""
    path = state / "trainer.json"
    path.write_text(change(json.loads(path.read_bytes())))
    known = manifest.read(state)
    manifest.write(state, replace(known, files=manifest.of_files(state)))
    return state


class Position:
    """A sampler, as far as states know it."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.at = (0, 0)

    def go_on(self, epoch: int, batch: int) -> None:
        self.at = epoch, batch


@pytest.mark.parametrize(
    ("saved", "ranks", "now", "batch"),
    [(8, 2, 8, 12), (8, 2, 16, 6), (8, 4, 8, 24), (8, 1, 8, 6), (8, 1, 16, 3), (8, 3, 8, 18)],
)
def test_another_number_of_ranks_goes_on_at_the_same_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int, ranks: int, now: int, batch: int
) -> None:
    """Six batches of each rank that saved are so many of this world, with batches of this size."""
    training = Training()
    training.train(6)
    sampler = Position(now)
    state = saved_by(tmp_path, monkeypatch, training, ranks, Position(saved))
    at = distributed.load_state(state, **training.parts, sampler=sampler)
    assert at.batch == batch
    assert sampler.at == (1, batch)
    assert at.exact is (ranks == 1)


def saved_by(folder: Path, monkeypatch: pytest.MonkeyPatch, training: Training, ranks: int, sampler: Any) -> Path:
    """Return a state as so many ranks would have saved it."""
    with monkeypatch.context() as patch:
        patch.setattr(world, "current", lambda: world.World(size=ranks))
        patch.setattr(states, "_offered", lambda _: states._alone["state/0"])
        patch.setattr(places, "writer_of", lambda place: place.mkdir(exist_ok=True) or 0)
        return training.save(folder, sampler=sampler)


def test_where_nothing_can_go_on_exactly_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrong number of steps is trained."""
    training = Training()
    training.train(3)
    state = saved_by(tmp_path, monkeypatch, training, 2, None)
    with pytest.raises(InputError, match="was saved by 2 ranks within an epoch, here are 1"):
        training.load(state)
    state = saved_by(tmp_path, monkeypatch, training, 2, Position(2))
    with pytest.raises(InputError, match="sample 12 of its epoch, where 1 ranks with batches of 5"):
        distributed.load_state(state, **training.parts, sampler=Position(5))


def test_a_state_holds_no_pickle(tmp_path: Path) -> None:
    """Tensors in safetensors, all else as text."""
    state = Training().save(tmp_path)
    assert {path.suffix for path in state.iterdir()} == {".safetensors", ".json"}
    assert json.loads((state / "trainer.json").read_bytes())["optimizer"]
    assert plain.read(state / "trainer")["identity"]
    assert manifest.verify(state).asked == manifest.OURS
