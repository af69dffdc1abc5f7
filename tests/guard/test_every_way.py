"""The law of the end, over the table of all ways to hang and to die."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import FAULTS
from tests.guard.together import Program, Together
from tests.guard.ways import LIMIT, LINUX, SMALL_DISK, WAYS, Way
from tests.warm import Starter

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not LINUX, reason="processes are found again by their environment in /proc"),
]

AT_ONCE = 8
HARD = 8.0
"""Seconds: what still lives so long after its start was neither ended nor healed."""


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm: Callable[[], Starter]
) -> Iterator[Together]:
    """Start the rows that were asked for, some at once, so that the table costs a fraction of its waits."""
    items: list[Any] = request.session.items
    chosen = [item.callspec.params["way"] for item in items if item.module is request.module]
    programs = [program(way) for way in chosen if not why_not(way)]
    table = Together(programs, tmp_path_factory.mktemp("ways"), warm, AT_ONCE)
    yield table
    table.close()


def program(way: Way) -> Program:
    """Return the program of a row."""
    waits = {
        "block_swap": LIMIT,
        "batch": LIMIT,
        "first_batch": way.first_batch,
        "read": LIMIT,
        "upload": LIMIT,
        "ending": LIMIT,
    }
    arguments = f"as_on.py {way.platform} {FAULTS}/{way.program}" if way.platform else way.program
    return Program(
        way.id,
        arguments,
        {"wait": waits, "max_heals": way.heals},
        way.start + max(HARD, way.within + 2),
        way.before,
        way.torch,
    )


@functools.cache
def small_disk() -> bool:
    """Return whether a user may mount a disk of their own here."""
    return not subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    ).returncode


def why_not(way: Way) -> str:
    """Return why a row cannot be run here, or nothing."""
    return (
        "no user name spaces here, in which to mount a small disk"
        if way.before == SMALL_DISK and not small_disk()
        else ""
    )


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.xfail(reason=way.fails) if way.fails else ()) for way in WAYS],
    ids=lambda way: way.id,
)
def test_whatever_hangs_or_dies_is_ended_or_healed(together: Together, way: Way) -> None:
    """In time, with its cause named, and nothing of it is left: no process, and no thread that an exit waits for."""
    if reason := why_not(way):
        pytest.skip(reason)
    ran = together.ran(way.id)
    outcome = ran.outcome
    assert outcome.code == way.code, ran.said
    assert way.says in ran.said
    if way.leaves:
        assert len(outcome.left) == 1
        return
    assert not outcome.left, f"left over after {HARD:g} s:\n{ran.said}"
    assert outcome.gone < way.within, f"gone only {outcome.gone:.2f} s after the wait began:\n{ran.said}"
