"""Laws of decisions, without other ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fluxguard import distributed
from fluxguard.distributed.meetings import decisions
from fluxguard.distributed.meetings.records import PAYLOAD

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    10**200,
    0.0,
    -0.0,
    0.1,
    1e308,
    math.inf,
    "",
    "stop",
    "\u00e9\0\ud800",
    "x" * 255,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_decision_arrives_as_it_was_made(value: Any) -> None:
    """Of the same type, and within what a rank may bring."""
    data = decisions.pack(value)
    again: Any = decisions.unpack(data)
    assert (again, type(again)) == (value, type(value))
    assert math.copysign(1, again) == math.copysign(1, value) if isinstance(value, float) else True
    assert len(data) <= PAYLOAD


def test_no_number_is_no_number_everywhere() -> None:
    assert math.isnan(decisions.unpack(decisions.pack(math.nan)))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"bytes", object(), 1j, lambda: 0])
def test_what_is_no_decision_is_refused(value: Any) -> None:
    """Nothing is ever pickled."""
    with pytest.raises(TypeError, match="a decision is a bool, int, float, str or None, not"):
        decisions.pack(value)


@pytest.mark.parametrize("value", ["x" * 256, 10**255])
def test_what_is_too_long_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        decisions.pack(value)


@pytest.mark.parametrize("data", [b"", b"x", b"b", b"b2", b"nn"])
def test_what_was_not_sent_as_a_decision_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="no decision"):
        decisions.unpack(data)


def test_alone_everything_is_the_identity() -> None:
    """A world of one: nobody is waited for, and the same is refused as in company."""
    assert distributed.decide(lambda: 7, "seven") == 7
    distributed.barrier("end of epoch")
    with distributed.on_main("save") as main, distributed.collective("gather"):
        assert main
    with pytest.raises(TypeError):
        distributed.decide(lambda: [1], "a list")
    with pytest.raises(ZeroDivisionError):
        distributed.decide(lambda: 1 // 0, "division")
