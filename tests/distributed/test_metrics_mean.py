"""Laws of the mean over ranks."""

from __future__ import annotations

import math

import pytest

from fluxguard import distributed
from fluxguard.distributed.measures.scalars import weighted
from fluxguard.errors import InputError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("said", "mean"),
    [
        ([(1.0, 1.0), (2.0, 1.0)], 1.5),
        ([(1.0, 3.0), (2.0, 1.0)], 1.25),
        ([(0.1, 1.0)] * 3, 0.1),
        ([(1e308, 1.0)] * 4, 1e308),
        ([(1.0, 1e308)] * 4, 1.0),
        ([(1e16, 1.0), (1.0, 1.0), (-1e16, 1.0)], 1 / 3),
        ([(5e-324, 1.0), (5e-324, 1.0)], 5e-324),
        ([(3.0, 0.0), (1.0, 1.0)], 1.0),
        ([(NAN, 0.0), (INF, 0.0), (1.0, 1.0)], 1.0),
        ([(INF, 1.0), (1.0, 1.0)], INF),
        ([(-INF, 1e-9), (1.0, 1.0)], -INF),
        ([(NAN, 1e-9), (1.0, 1.0)], NAN),
        ([(INF, 1.0), (-INF, 1.0)], NAN),
        ([(1e308, 1.0), (1e308, 1.0), (-INF, 1.0)], -INF),
        ([(1.0, 0.0), (2.0, 0.0)], NAN),
    ],
)
def test_the_mean_is_that_of_exact_arithmetic(said: list[tuple[float, float]], mean: float) -> None:
    """What is lost on one rank is lost for all; who has no weight says nothing; nobody's mean is NaN."""
    for order in (said, said[::-1]):
        found = weighted("loss", [(True, *one) for one in order])
        assert found == mean or (math.isnan(mean) and math.isnan(found))


@pytest.mark.parametrize("weight", [-1.0, NAN, INF])
def test_a_weight_that_is_none_names_its_rank(weight: float) -> None:
    """On every rank, because each looks at the same numbers."""
    with pytest.raises(InputError, match="loss: the weight of rank 1 must be 0 or more"):
        weighted("loss", [(True, 1.0, 1.0), (True, 1.0, weight)])


def test_a_value_that_is_no_number_names_its_rank() -> None:
    """The rank that has it has come, so that nobody waits for it."""
    with pytest.raises(InputError, match="rank 0 is not one number"):
        weighted("loss", [(False, NAN, NAN), (True, 1.0, 1.0)])


@pytest.mark.parametrize("value", ["a", None, [1.0], {}])
def test_without_a_group_it_is_the_value_or_the_same_error(value: object) -> None:
    """A world of one."""
    assert distributed.mean(3) == 3.0
    assert math.isnan(distributed.mean(3, weight=0))
    with pytest.raises(InputError, match="rank 0"):
        distributed.mean(value)


def test_a_loss_is_taken_as_it_is() -> None:
    """A tensor of one element with its gradient, and without a warning of torch's."""
    torch = pytest.importorskip("torch")
    loss = torch.tensor([2.5], requires_grad=True)
    assert distributed.mean(loss, torch.tensor(3)) == 2.5
    with pytest.raises(InputError, match="is not one number"):
        distributed.mean(torch.ones(2, requires_grad=True))
