"""Laws of the evidence: whose last words count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.incidents.evidence import last_words

ATTEMPT = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=0.0, keeper=None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory."""
    made = RunDir(tmp_path)
    made.create()
    return made


def say(run: RunDir, rank: int, time: Any, attempt: str = "a") -> None:
    """Leave the last words of a rank."""
    write_json(run.last_words(rank), {"attempt": attempt, "cause": f"cause {rank}", "time": time})


def test_the_first_rank_that_spoke_is_heard(run: RunDir) -> None:
    """The others may only have waited for it."""
    assert last_words(run, ATTEMPT) is None
    say(run, 0, 20.0)
    say(run, 11, 10.0)
    say(run, 3, "soon")
    words = last_words(run, ATTEMPT)
    assert words is not None
    assert (words["rank"], words["cause"]) == (11, "cause 11")


def test_another_attempt_is_not_heard(run: RunDir) -> None:
    """Nor what is torn, or not named as a rank's."""
    say(run, 0, 1.0, attempt="before")
    run.last_words(1).write_bytes(b"{")
    (run.root / "last-words.x.json").write_bytes(run.last_words(0).read_bytes())
    (run.root / "last-words.2.json").mkdir()
    assert last_words(run, ATTEMPT) is None
