"""Laws of what is no cause: outputs of trainings that went well, all of which read worse than they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.supervisor.causes.diagnosis import Evidence, diagnose
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit

LOGS = sorted((Path(__file__).parent / "healthy").glob("*.txt"))
ENDED = Symptom(kind="ended", phase="step", since=0.2)
STUCK = Symptom(kind="stuck", phase="step", since=301.0, limit=300.0)


def cuts(lines: list[str]) -> list[list[str]]:
    """Return the log as it was after each of its lines, as the tail of a supervisor holds it."""
    return [lines[:end][-200:] for end in range(1, len(lines) + 1)]


@pytest.fixture(params=LOGS, ids=lambda path: path.stem)
def lines(request: pytest.FixtureRequest) -> list[str]:
    """The lines of a healthy log."""
    path: Path = request.param
    return path.read_text("utf-8").splitlines()


def test_a_kill_is_a_kill_wherever_it_comes(lines: list[str]) -> None:
    """After any line of a healthy log, whatever that line says, but for a whole traceback that nothing followed yet."""
    for cut in cuts(lines):
        cause = diagnose(ENDED, Evidence(exit=Exit(signal=9), lines=cut)).cause
        assert cause == "killed from outside (SIGKILL)" or _at_a_traceback(cut), cut[-1]


def test_a_run_without_progress_is_not_explained_by_warnings(lines: list[str]) -> None:
    """Lines of the output name the end of a training, never its standing still."""
    for cut in cuts(lines):
        assert diagnose(STUCK, Evidence(lines=cut)).cause == "no progress (step)"


def test_an_end_without_words_has_no_cause(lines: list[str]) -> None:
    """Its last line is progress: all that came before was survived."""
    assert diagnose(ENDED, Evidence(exit=Exit(code=3), lines=lines[-200:])).cause == "ended without a word"


def _at_a_traceback(cut: list[str]) -> bool:
    """Whether the log was cut where a real end would look the same."""
    return any("Traceback (most recent call last)" in line for line in cut[-25:])
