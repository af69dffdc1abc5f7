"""Laws of the first weights: from the file or anew, and whatever is wrong with the file is said with its name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fluxguard import distributed
from fluxguard.distributed.models import seeds
from fluxguard.errors import InputError


def build() -> nn.Module:
    """Return a small model."""
    return nn.Linear(3, 2)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_the_weights_of_the_file_are_used(tmp_path: Path, name: str) -> None:
    """Of either kind."""
    saved = build().state_dict()
    (save_file if name.endswith("s") else torch.save)(saved, tmp_path / name)
    loaded = distributed.load_or_init(tmp_path / name, build)
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in saved.items())


def test_without_the_file_the_model_is_new_and_depends_on_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on nothing else."""
    monkeypatch.setattr(seeds, "_base", 7)
    one, other = (distributed.load_or_init(tmp_path / "none.pt", build) for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    with pytest.raises(InputError, match=r"none\.pt: is not there"):
        distributed.load_or_init(tmp_path / "none.pt", build, missing="error")
    assert torch.equal(distributed.load_or_init(None, build).weight, one.weight)
    with pytest.raises(InputError, match="path: is None"):
        distributed.load_or_init(None, build, missing="error")


class Strange:
    """What no file of weights holds."""


def write(path: Path, what: str) -> None:
    """Write a file that cannot be used."""
    weights: dict[str, Any] = dict(build().state_dict())
    if what in ("cut", "text", "empty"):
        torch.save(weights, path)
        path.write_bytes({"cut": path.read_bytes()[:-50], "text": b"<html>", "empty": b""}[what])
    elif what == "object":
        torch.save({"model": Strange()}, path)
    elif what == "folder":
        path.mkdir()
    else:
        changes = {
            "nested": {"model": weights},
            "lacking": {"weight": weights["weight"]},
            "strange": {**weights, "head.weight": torch.ones(1)},
            "shape": {**weights, "bias": torch.ones(3)},
        }
        torch.save(changes[what], path)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("cut", "cannot be read as weights"),
        ("text", "cannot be read as weights"),
        ("empty", "cannot be read as weights"),
        ("object", "cannot be read as weights"),
        ("folder", "cannot be read as weights"),
        ("nested", "holds more or other than the state_dict"),
        ("lacking", "lacks bias"),
        ("strange", "holds head.weight, which the model does not have"),
        ("shape", r"holds bias as \(3,\), the model has \(2,\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_or_new_weights(
    tmp_path: Path, what: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As was asked for; the file is named, and nothing in it is run."""
    path = tmp_path / "weights.pt"
    write(path, what)
    with pytest.raises(InputError, match=rf"weights\.pt: {says}"):
        distributed.load_or_init(path, build)
    with caplog.at_level(logging.WARNING):
        distributed.load_or_init(path, build, broken="build")
    assert "new weights are used" in caplog.text


class Tied(nn.Module):
    """Writes with the weights by which it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = nn.Embedding(5, 3)
        self.writes = nn.Linear(3, 5, bias=False)
        self.writes.weight = self.reads.weight


@pytest.mark.parametrize("name", ["reads.weight", "writes.weight"])
def test_weights_with_two_names_may_come_under_one_of_them(tmp_path: Path, name: str) -> None:
    """As safetensors saves a model; they stay one."""
    path = tmp_path / "weights.safetensors"
    save_file({name: torch.full((5, 3), 7.0)}, path)
    model: Any = distributed.load_or_init(path, Tied)
    assert model.writes.weight is model.reads.weight
    assert (model.reads.weight == 7).all()


def test_a_broken_safetensors_file_is_named_too(tmp_path: Path) -> None:
    """Its own kind of error is translated."""
    path = tmp_path / "weights.safetensors"
    save_file(build().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"weights\.safetensors: cannot be read"):
        distributed.load_or_init(path, build)


def test_an_answer_that_is_none_is_refused(tmp_path: Path) -> None:
    """Before anything is built."""
    with pytest.raises(InputError, match="broken: 'ignore'"):
        distributed.load_or_init(tmp_path / "weights.pt", build, broken="ignore")
