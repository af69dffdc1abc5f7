"""Laws of the limits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fluxguard import limits
from fluxguard.errors import LimitsError
from fluxguard.limits import PHASES, Limits


def test_every_phase_has_a_limit() -> None:
    """No phase is without patience and ceiling by default."""
    assert set(Limits().phase) == set(PHASES)
    assert all(limit.patience and limit.ceiling for limit in Limits().phase.values())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"wait": {"block_swap": 0}}, "wait.block_swap"),
        ({"wait": {"block_swap": -1}}, "wait.block_swap"),
        ({"wait": {"block_swap": "soon"}}, "wait.block_swap"),
        ({"wait": {"block_swap": True}}, "wait.block_swap"),
        ({"wait": {"blocks": 3}}, "wait.blocks"),
        ({"wait": 3}, "wait"),
        ({"phase": {"nap": {"patience": 3}}}, "phase.nap"),
        ({"phase": {"step": {"patience": 400}}}, "phase.step.ceiling"),
        ({"watch": {"look": None}}, "watch.look"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"max_restarts": 1.5}, "max_restarts"),
        ({"max_bad_losses": 0}, "max_bad_losses"),
        ({"max_bad_losses": 2.5}, "max_bad_losses"),
        ({"speed": 1}, "speed"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(values: dict[str, Any], field: str) -> None:
    """The error names the source and the field."""
    with pytest.raises(LimitsError) as caught:
        Limits.from_mapping(values, "my.toml")
    assert caught.value.field == field
    assert caught.value.source == "my.toml"


def test_null_means_no_limit() -> None:
    """None switches a wait off."""
    assert Limits.from_mapping({"wait": {"batch": None}}).wait.batch is None
    assert Limits.from_mapping({"max_bad_losses": None}).max_bad_losses is None


def test_the_guard_gives_up_before_the_supervisor_loses_patience() -> None:
    """What the guard survives must not be ended from outside before."""
    limits = Limits()
    for phase, wait in (("ending", limits.wait.ending), ("upload", limits.wait.upload)):
        assert (wait or 0) < (limits.phase[phase].patience or 0)
    assert (limits.wait.sample or 0) < (limits.phase["sampling"].ceiling or 0)


def test_the_page_about_limits_names_them_all() -> None:
    """Each with its default."""
    page = (Path(__file__).parents[1] / "docs" / "limits.md").read_text("utf-8")
    for name, value in vars(Limits().wait).items():
        assert re.search(rf"^{name} = {value:g} ", page, re.MULTILINE), name
    assert all(f"`{name}`" in page for name in PHASES)
    assert f"max_bad_losses = {Limits().max_bad_losses} " in page


def test_values_go_through_a_file(tmp_path: Path) -> None:
    """What the supervisor writes, the guard reads."""
    chosen = Limits.from_mapping({"wait": {"block_swap": 2}, "phase": {"step": {"patience": 4, "ceiling": 5}}})
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"version": 1, **chosen.to_mapping()}))
    assert limits.read(path) == chosen


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    """Broken limits are never taken for the defaults."""
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(LimitsError, match=r"limits\.json"):
        limits.read(path)


def test_an_unhardened_trainer_gets_twice_the_time() -> None:
    """Phases double; the supervisor's own habits do not."""
    doubled = Limits().doubled()
    assert doubled.phase["step"].patience == 2 * (Limits().phase["step"].patience or 0)
    assert doubled.watch == Limits().watch


def test_a_file_is_read_over_the_defaults_it_is_given() -> None:
    """What it does not name stays as it is, doubled for instance."""
    doubled = Limits().doubled()
    assert Limits.from_mapping({"max_restarts": 3}, "x", doubled).phase == doubled.phase
