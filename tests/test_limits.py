"""Laws of the limits."""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fluxguard
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
        ({"max_heals": -1}, "max_heals"),
        ({"max_heals": True}, "max_heals"),
        ({"strict": 1}, "strict"),
        ({"strict": None}, "strict"),
        ({"wait": {"read": float("inf")}}, "wait.read"),
        ({"wait": {"read": 10**400}}, "wait.read"),
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
    chosen = replace(chosen, max_heals=0, strict=True)
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"version": 1, **chosen.to_mapping()}))
    assert limits.read(path) == chosen


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    """Broken limits are never taken for the defaults."""
    path = tmp_path / "limits.json"
    path.write_bytes(content)
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


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process not know its limits yet, until the end of the test."""
    monkeypatch.setattr(limits._process, "limits", None)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (json.dumps({"version": 1, "wait": {"block_swap": 7}}), 7.0),
        (json.dumps({"wait": {"block_swap": 0}}), 30.0),
        ("{", 30.0),
        (None, 30.0),
    ],
    ids=["set", "refused", "torn", "missing"],
)
def test_a_file_that_cannot_be_used_never_keeps_a_training_from_starting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str | None,
    seconds: float,
) -> None:
    """The defaults hold instead, which is said once."""
    path = tmp_path / "limits.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("FLUXGUARD_LIMITS", str(path))
    assert limits.current().wait == limits.WaitLimits(block_swap=seconds)
    assert limits.current() is limits.current()
    assert len(caplog.records) == (seconds == 30.0)


@pytest.mark.usefixtures("fresh")
def test_a_limit_may_be_set_by_a_plain_call() -> None:
    """It stays; what the call does not name is left."""
    before = limits.current()
    limits.use(batch=5, read=None)
    assert limits.current().wait == replace(before.wait, batch=5.0, read=None)
    limits.use(batch=6)
    assert limits.current().wait == replace(before.wait, batch=6.0, read=None)


@pytest.mark.usefixtures("fresh")
def test_a_limit_may_be_set_for_a_block() -> None:
    """Whatever happened in it: the limits it names are restored, others are not touched."""
    before = limits.current().wait
    with contextlib.suppress(KeyError), limits.use(batch=5):
        assert limits.current().wait.batch == 5
        limits.use(read=7)
        with limits.use(batch=6):
            assert limits.current().wait.batch == 6
        assert limits.current().wait.batch == 5
        raise KeyError
    assert limits.current().wait == replace(before, read=7.0)


@pytest.mark.usefixtures("fresh")
def test_one_choice_of_limits_may_be_used_again_and_inside_itself() -> None:
    """Each block takes back what it has set."""
    before = limits.current()
    chosen = limits.use(batch=5)
    with chosen:
        limits.use(batch=9)
        with chosen:
            assert limits.current().wait.batch == 5
        assert limits.current().wait.batch == 9
    assert limits.current() == before
    with chosen:
        assert limits.current().wait.batch == 5
    assert limits.current() == before


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("waits", "field"),
    [({"batch": 5, "bacth": 5}, "wait.bacth"), ({"batch": 5, "read": 0}, "wait.read"), ({"batch": "5"}, "wait.batch")],
)
def test_what_is_no_limit_changes_none(waits: dict[str, Any], field: str) -> None:
    """A typo is an error that names it."""
    before = limits.current()
    with pytest.raises(LimitsError) as caught:
        limits.use(**waits)
    assert caught.value.field == field
    assert limits.current() == before


def test_the_limits_are_a_public_name_that_costs_nothing_before_it_is_asked_for() -> None:
    """Importing the package imports none of its modules."""
    assert "limits" in fluxguard.__all__
    program = """
import sys, fluxguard
assert not [name for name in sys.modules if name.startswith("fluxguard.")]
assert fluxguard.limits.current().wait.batch == 60
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(Path(__file__).parents[1])})
