"""Laws of a wrapped model: it looks like itself, in a world of one too; what cannot be wrapped is said."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fluxguard import distributed
from fluxguard.distributed.models import wrapping
from fluxguard.errors import InputError


class Model(nn.Module):
    """A model with something of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.temperature = 0.5

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.inner(given) / self.temperature  # type: ignore[no-any-return]

    def generate(self) -> str:
        """Do what only this model does."""
        return f"made at {self.temperature}"


def test_a_model_alone_is_wrapped_as_among_others() -> None:
    """Its attributes, its methods, its weights under their own names, `.module` and no_sync."""
    model = Model()
    wrapped = distributed.wrap(model)
    assert wrapped.module is model
    assert wrapped.inner is model.inner
    assert wrapped.generate() == "made at 0.5"
    assert list(wrapped.state_dict()) == ["inner.weight", "inner.bias"]
    given = torch.ones(1, 3)
    with wrapped.no_sync():
        wrapped(given).sum().backward()
    assert model.inner.weight.grad is not None
    assert torch.equal(wrapped(given), model(given))
    assert not wrapped.eval().module.training


def test_weights_fit_with_and_without_the_wrapping() -> None:
    """Both ways."""
    one, other = Model(), distributed.wrap(Model())
    other.load_state_dict(one.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    one.load_state_dict(other.state_dict())


def test_a_wrapped_model_can_be_copied_and_pickled() -> None:
    """Where its own class can."""
    wrapped = distributed.wrap(Model())
    for again in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert again.generate() == "made at 0.5"
        assert torch.equal(again.inner.weight, wrapped.inner.weight)


def test_an_attribute_that_nobody_has_is_missing() -> None:
    """As on the model itself."""
    wrapped = distributed.wrap(Model())
    assert not hasattr(wrapped, "temprature")
    with pytest.raises(AttributeError, match="temprature"):
        _ = wrapped.temprature


def test_an_unknown_compression_names_those_that_there_are() -> None:
    """In a world of one too, where none is used."""
    distributed.wrap(Model(), compression="bf16")
    with pytest.raises(InputError, match="'gzip' is none of bf16, fp16, powersgd"):
        distributed.wrap(Model(), compression="gzip")


def test_the_model_itself_is_found_behind_everything() -> None:
    """Its names are those that weights are saved by."""
    model = Model()
    compiled = nn.Module()
    compiled._orig_mod = model  # what torch.compile makes of it, and what takes seconds to import
    for one in (model, distributed.wrap(model), compiled, distributed.wrap(compiled)):
        assert wrapping.bare(one) is model
    wrapped = distributed.wrap(compiled)
    assert list(wrapped.state_dict()) == list(model.state_dict())
    wrapped.load_state_dict(Model().state_dict())
