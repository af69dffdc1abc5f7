"""Laws of sampling: a picture that fails costs itself, and leaves no trace in the training."""

from __future__ import annotations

import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from fluxguard.guard import pulse, sampling
from fluxguard.heartbeat import Heart

pytestmark = pytest.mark.integration  # importing torch takes longer than all unit tests may


@pytest.fixture
def torch(heart: Heart) -> Any:
    return pytest.importorskip("torch")


def accelerator(processes: int = 1) -> SimpleNamespace:
    return SimpleNamespace(num_processes=processes, unwrap_model=lambda model: model)


class Failure(Exception):
    """What a sampler raises."""


@sampling.sample
def one(accelerator: Any, model: Any, ae: Any, fails: bool = True) -> str:
    """Sample one image as upstream does, half-way."""
    import torch

    torch.manual_seed(1)
    random.random()
    model.eval()
    ae.to(torch.float64)
    if fails:
        raise Failure("the picture is lost")
    return "sampled"


@sampling.samples
def several(accelerator: Any, count: int, model: Any, ae: Any, done: list[int]) -> None:
    """Sample images in a row."""
    import torch

    state = torch.get_rng_state()
    for number in range(count):
        one(accelerator, model, ae)
        done.append(number)
    torch.set_rng_state(state)


def test_an_image_that_fails_is_left_out(torch: Any, heart: Heart, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are made, each failure is counted, and its error is shown and marked."""
    done: list[int] = []
    several(accelerator(), 3, torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), done)
    assert done == [0, 1, 2]
    assert heart.unsampled >= 3
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    assert all(line.startswith("fluxguard| ") for line in told)
    assert "fluxguard| " + f"{Failure.__module__}.Failure: the picture is lost" in told


def test_what_it_leaves_half_changed_is_put_back(torch: Any) -> None:
    """Random states, and the mode of every module for itself."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    model.train()
    model[1].eval()
    decoder = torch.nn.Linear(2, 2)
    before = torch.get_rng_state(), random.getstate()
    one(accelerator(), model, decoder)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_an_error_between_two_images_leaves_the_noise_of_the_training(torch: Any) -> None:
    """The images before it have drawn from it, and nobody put it back."""

    @sampling.samples
    def broken(accelerator: Any, model: Any, ae: Any) -> None:
        one(accelerator, model, ae, fails=False)
        raise Failure

    model, decoder = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before = torch.get_rng_state(), random.getstate()
    broken(accelerator(), model, decoder)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_model_goes_back_to_its_device(torch: Any) -> None:
    """A decoder that was on its way to the GPU must not stay there."""

    @sampling.sample
    def moving(accelerator: Any, models: list[Any]) -> None:
        models[0].to("meta")
        raise Failure

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.asked: list[Any] = []

        def to(self, device: Any) -> Any:
            self.asked.append(str(device))
            self.weight = torch.nn.Parameter(torch.zeros(1, device=device))
            return self

    decoder = Decoder()
    moving(accelerator(), [decoder])
    assert decoder.asked == ["meta", "cpu"]


def test_swapped_blocks_are_where_the_training_wants_them(torch: Any) -> None:
    """Open moves are waited for, the direction is put back, and the blocks are laid out anew."""

    class Offloader:
        def __init__(self) -> None:
            moved: Future[tuple[int, int]] = Future()
            moved.set_result((0, 1))
            self.futures = {1: moved}
            self.forward_only = False

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks_to_swap = 2
            self.offloader_double = Offloader()
            self.prepared = 0

        def prepare_block_swap_before_forward(self) -> None:
            assert not self.offloader_double.futures
            self.prepared += 1

    @sampling.sample
    def swapping(accelerator: Any, model: Any) -> None:
        model.offloader_double.forward_only = True
        raise Failure

    model = Model()
    swapping(accelerator(), model)
    assert (model.prepared, model.offloader_double.forward_only) == (1, False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_end_that_is_wanted_comes(torch: Any, error: type[BaseException]) -> None:
    """Ctrl-C while sampling ends the training."""

    @sampling.samples
    def interrupted(accelerator: Any) -> None:
        raise error

    with pytest.raises(error):
        interrupted(accelerator())


def test_of_several_processes_none_goes_on_alone(torch: Any) -> None:
    """The others would wait for it in their next common step."""
    with pytest.raises(Failure):
        one(accelerator(processes=2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


def test_a_page_sees_the_error(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a trainer nothing is changed."""
    monkeypatch.setattr(pulse._trainer, "begun", False)
    with pytest.raises(Failure):
        one(accelerator(), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


def test_an_image_that_is_made_is_untouched(torch: Any) -> None:
    """What sampling leaves when it goes well is the trainer's business."""
    model = torch.nn.Linear(2, 2)
    assert one(accelerator(), model, torch.nn.Linear(2, 2), fails=False) == "sampled"
    assert not model.training


def test_a_late_image_is_given_up_between_two_steps(
    torch: Any, heart: Heart, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step is progress; the one after the limit is not begun."""
    now = [0.0]
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: now[0]))
    steps: list[int] = []

    @sampling.sample
    def slow(accelerator: Any) -> None:
        for step in sampling.denoising(range(20)):
            steps.append(step)
            now[0] += 1000

    slow(accelerator())
    assert steps == [0, 1]
    assert heart.done == 2
    assert "sampling an image did not finish within 1800 s" in capsys.readouterr().err


def test_steps_outside_of_a_training_are_passed_on(torch: Any, heart: Heart) -> None:
    """The same loops make images in scripts that only sample."""
    assert list(sampling.denoising("abc")) == ["a", "b", "c"]
    assert heart.done == 0
