"""Laws of what a trainer keeps: it comes back as it was, without pickle; what would not is refused when it is saved."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from fluxguard.distributed.saving import plain
from fluxguard.errors import InputError

VALUES: dict[str, Any] = {
    "nothing": None,
    "numbers": [1, -2.5, True, 10**30, math.inf],
    "pair": (1, ("two", [3])),
    "table": {0: {"step": 1}, 1: {}, "$tensor": "no tensor"},
    "counter": Counter({30: 1, 80: 2}),
    "numpy": numpy.float64(0.1),
    "text": "\u00fcber",
}


def same(one: object, other: object) -> bool:
    """Return whether two values are equal, tensors in them too."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    """Of the same types: keys that are numbers, tuples, infinities and counters included."""
    plain.write(tmp_path / "it", VALUES)
    back = plain.read(tmp_path / "it")
    assert same(back, {**VALUES, "numpy": 0.1})
    assert isinstance(back["counter"], Counter)
    plain.write(tmp_path / "nan", {"loss": math.nan})
    assert math.isnan(plain.read(tmp_path / "nan")["loss"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    """Numbers, views, empty ones, and several in one memory."""
    whole = torch.arange(12).to(dtype)
    values = {
        "number": whole[3],
        "view": whole[2:5],
        "turned": whole.reshape(3, 4).t(),
        "empty": whole[:0],
        "all": whole,
    }
    plain.write(tmp_path / "it", {**values, "again": [whole, {0: whole}]})
    assert same(plain.read(tmp_path / "it"), {**values, "again": [whole, {0: whole}]})


SCHEDULERS: list[Any] = [
    lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8]),
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20, cycle_momentum=False),
    lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [5],
    ),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_what_torchs_own_optimizers_and_schedulers_keep_comes_back(
    tmp_path: Path, optimizer: Any, scheduler: Any
) -> None:
    """Every number of it."""
    model = nn.Linear(3, 2)
    trained = optimizer(model.parameters(), lr=0.1)
    schedule = scheduler(trained)
    for _ in range(3):
        model(torch.randn(4, 3)).sum().backward()
        trained.step()
        schedule.step(*([1.0] if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
    kept = {"optimizer": trained.state_dict(), "scheduler": schedule.state_dict()}
    plain.write(tmp_path / "it", kept)
    assert same(plain.read(tmp_path / "it"), kept)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"run": {"on_end": print}}, "it.run.on_end: is of type builtin_function_or_method"),
        ({"layers": [nn.Linear(1, 1)]}, "it.layers[0]: is of type Linear"),
        ({"table": {(1, 2): 3}}, "it.table: has a key of type tuple"),
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(
    tmp_path: Path, value: dict[str, Any], place: str
) -> None:
    """By its place and its type."""
    with pytest.raises(InputError, match=place.replace("[", r"\[")):
        plain.write(tmp_path / "it", value)
    assert not list(tmp_path.iterdir())


def test_what_holds_itself_is_refused() -> None:
    """And does not end in a deep recursion."""
    inner: list[Any] = []
    inner.append(inner)
    with pytest.raises(InputError, match="holds itself"):
        plain.text_of({"inner": inner}, "it")


def test_text_alone_holds_no_tensors() -> None:
    """A rank's own values travel as text."""
    with pytest.raises(InputError, match="own: holds a tensor"):
        plain.text_of({"inner": torch.ones(1)}, "own")
    assert plain.values_of(plain.text_of({"inner": (1, 2)}, "own")) == {"inner": (1, 2)}
