"""Laws of the picture: it shows what is known, where it was, and leaves a gap where nothing is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fluxguard.supervisor.incidents import chart
from tests.supervisor.incidents.made import AT, points


def drawn(made: list[dict[str, Any]], at: float = AT) -> chart.Chart:
    """Return the picture of points."""
    found = chart.drawn(made, at)
    assert found is not None
    return found


def test_phases_are_bands_with_a_gap_only_between_attempts() -> None:
    """Each as wide as it was long, one after the other, up to the incident."""
    found = drawn(points())
    assert [band.phase for band in found.bands] == ["load", "step", "step", "sampling", "step"]
    assert [band.kind for band in found.bands] == ["start", "training", "training", "sampling", "training"]
    assert [band.seconds for band in found.bands] == [50, 140, 100, 40, 260]
    ends = [band.x + band.width for band in found.bands]
    begins = [band.x for band in found.bands[1:]]
    assert [ends[0], *ends[2:-1]] == pytest.approx([begins[0], *begins[2:]], abs=0.02)
    assert ends[1] < begins[1] - 1
    assert ends[-1] == pytest.approx(found.mark, abs=0.02)


def test_the_incident_and_further_attempts_are_marked() -> None:
    """The first attempt begins where the picture does."""
    found = drawn(points())
    assert list(found.starts) == pytest.approx([found.bands[2].x])
    assert found.bands[-1].x < found.mark < chart.WIDTH


def test_what_is_not_known_is_a_gap() -> None:
    """Not a line to zero, and not one across."""
    (loss,) = (panel for panel in drawn(points()).panels if panel.field == "loss")
    known = sum("loss" in point for point in points())
    assert len(re.findall("[ML]", loss.path)) == known
    assert loss.path.count("M") > 3
    assert "watts" not in [panel.field for panel in drawn(points()).panels]
    assert "GPU power" in drawn(points()).unknown


def test_every_line_stays_in_its_panel() -> None:
    """Whatever the values are; a constant too."""
    made = [
        {"at": AT - 10 + at, "attempt": 1, "phase": "step", "step": 7, "loss": value}
        for at, value in enumerate([-1e9, 1e9, 0.0])
    ]
    for panel in drawn([*points(), *made]).panels:
        numbers = re.findall(r"[ML]([\d.e+-]+) ([\d.e+-]+)h0", panel.path)
        assert numbers
        assert all(0 <= float(x) <= chart.WIDTH and 0 <= float(y) <= chart.HEIGHT for x, y in numbers)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**400, None, "9", True, [1]],
    ids=["nan", "inf", "huge", "none", "text", "true", "list"],
)
def test_what_is_no_number_is_unknown(value: object) -> None:
    """A report may have been edited."""
    made = [{**point, "loss": value, "watts": value} for point in points()]
    assert "loss" in drawn(made).unknown
    assert chart.drawn([{"at": value}, {"at": value}], AT) is None


def test_there_is_no_picture_of_nothing() -> None:
    """One point is none."""
    assert chart.drawn([], AT) is None
    assert chart.drawn(points(1), AT) is None


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (3600, "1 h 00 min")])
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert chart.brief(seconds) == words
