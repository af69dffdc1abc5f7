"""Properties of the limits."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxguard import limits
from fluxguard.errors import LimitsError
from fluxguard.limits import PHASES, Limits, PhaseLimit, WaitLimits, WatchLimits
from tests.properties.values import json_of

NAMES = [field.name for kind in (Limits, WaitLimits, PhaseLimit, WatchLimits) for field in fields(kind)]
SECONDS = st.floats(min_value=1e-6, max_value=1e12)


@st.composite
def phases(draw: st.DrawFn) -> PhaseLimit:
    patience, more = draw(st.none() | SECONDS), draw(SECONDS)
    return PhaseLimit(patience=patience, ceiling=draw(st.none() | st.just((patience or 0.0) + more)))


CHOSEN = st.builds(
    Limits,
    wait=st.builds(WaitLimits, **{field.name: st.none() | SECONDS for field in fields(WaitLimits)}),
    phase=st.fixed_dictionaries({name: phases() for name in PHASES}),
    watch=st.builds(WatchLimits, **{field.name: SECONDS for field in fields(WatchLimits)}),
    max_restarts=st.integers(min_value=0),
    max_kills=st.integers(min_value=0),
    max_heals=st.integers(min_value=0),
    max_bad_losses=st.none() | st.integers(min_value=1),
    strict=st.booleans(),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limits") / "limits.json"


@given(chosen=CHOSEN)
def test_limits_are_the_same_after_any_way(path: Path, chosen: Limits) -> None:
    """As plain values, and through the file between supervisor and guard."""
    assert Limits.from_mapping(chosen.to_mapping()) == chosen
    path.write_text(json.dumps({"version": 1, **chosen.to_mapping()}))
    assert limits.read(path) == chosen


@given(values=json_of([*NAMES, *PHASES]))
def test_whatever_json_says_is_limits_or_an_error_that_names_them(path: Path, values: Any) -> None:
    """It is never taken half, and never another error."""
    path.write_text(json.dumps(values))
    with contextlib.suppress(LimitsError):
        assert isinstance(limits.read(path), Limits)


@given(content=st.binary(max_size=40) | st.text(alphabet='{}[]":,0123456789.eE-ntfals', max_size=20).map(str.encode))
def test_whatever_a_file_holds_is_limits_or_an_error_that_names_it(path: Path, content: bytes) -> None:
    """A file that is torn, or no file of limits at all."""
    path.write_bytes(content)
    with contextlib.suppress(LimitsError):
        assert isinstance(limits.read(path), Limits)


@given(content=st.integers(min_value=0, max_value=len(json.dumps(Limits().to_mapping())) - 1))
def test_a_torn_file_is_an_error(path: Path, content: int) -> None:
    """Wherever it ends."""
    path.write_text(json.dumps(Limits().to_mapping())[:content])
    with pytest.raises(LimitsError):
        limits.read(path)


@given(waits=st.dictionaries(st.sampled_from([field.name for field in fields(WaitLimits)]), st.none() | SECONDS))
def test_limits_of_a_block_hold_in_it_only(waits: dict[str, float | None]) -> None:
    """All that it names, and nothing else."""
    before = limits.current()
    with limits.use(**waits):
        inside = vars(limits.current().wait)
        assert {name: inside[name] for name in waits} == waits
        assert {name: value for name, value in vars(before.wait).items() if name not in waits}.items() <= inside.items()
    assert limits.current() == before
