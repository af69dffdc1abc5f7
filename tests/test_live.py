"""Laws of the live view: all that matters at any width, and what is unknown is called so."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fluxguard.cli import live
from fluxguard.supervisor.showing.eta import Pace
from fluxguard.supervisor.showing.snapshot import Left, Snapshot
from fluxguard.supervisor.showing.status import Status
from fluxguard.supervisor.timeline import Point

GIB = 1 << 30
AT = 1_700_000_000.0


def status(**values: Any) -> Status:
    """Return the status of a training at step 120 of 400."""
    known: dict[str, Any] = {
        "state": "running", "watched": True, "next_attempt_at": None, "planned_steps": 400, "applied_steps": 120,
        "attempts": 2, "phase": "step", "step": 120, "loss": 0.0432, "eta_s": 1.0, "reason": "training",
        "weights": {"path": None, "verified": False}, "incidents": [], "healed": [], "healing": "",
        "output_dir": str(Path("outputs", "my-lora").absolute()), "hardened": True, "lines": ["one", "two"],
    }  # fmt: skip
    return Status(**{**known, **values})


def snapshot(**values: Any) -> Snapshot:
    """Return a look at it; values are those of the snapshot or of its status."""
    own = {name: values.pop(name) for name in list(values) if name in Snapshot.__dataclass_fields__}
    known: dict[str, Any] = {
        "at": AT, "phase_for": 12.0,
        "limits": (Left(name="patience", limit=300, left=288), Left(name="ceiling", limit=300, left=290)),
        "pace": Pace(step=120, now=26.84, usual=26.0),
        "losses": tuple(0.1 - i / 1000 for i in range(50)),
        "point": Point(
            at=AT - 5, attempt=2, phase="step", step=120, gpu_percent=93, gpu_used=int(21.3 * GIB), watts=310,
            ram_used=48 * GIB, trainer_rss=31 * GIB, swap_used=0, disk_free=120 * GIB,
        ),
    }  # fmt: skip
    return Snapshot(status=status(**values), **{**known, **own})


def drawn(shown: Any, width: int = 120, *, encoding: str = "utf-8", color: bool = False) -> str:
    """Return what a terminal of this width would show."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    console = Console(file=file, width=width, force_terminal=color, color_system="standard" if color else None)
    console.print(shown)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


FULL = snapshot(
    healing="healed 2 times in place, still bit-identical",
    troubles=["the disk of the output folder is nearly full: 0.9 GiB free; free some space before the next save"],
    incidents=[{"step": 80 + i, "words": f"The loader stood still for {i} s."} for i in range(6)],
    lines=[f"steps: 30%|###| 120/400 [10:00<20:00, avr_loss=0.04] {i} " + "x" * 300 for i in range(40)],
)


@pytest.mark.parametrize("width", [20, 60, 80, 120, 250])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """At any width, for one run and for several."""
    for shown in (live.view(FULL), live.table([FULL, FULL])):
        lines = drawn(shown, width).splitlines()
        assert lines
        assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_all_that_matters_is_shown(width: int) -> None:
    """State, phase and its limits, steps, the true time left, speed, loss, machine, and what comes at the limit."""
    text = " ".join(drawn(live.view(FULL), width).split())
    for part in (
        "my-lora running attempt 2, hardened", "step for 12 s", "patience 4 min 48 s of 5 min left",
        "ceiling 4 min 50 s of 5 min left", "120/400 30 %", "about 2 h 1 min left", "a step takes 26.8 s", "0.0432",
        "busy 93 %, memory 21.3 GiB, power 310 W", "machine 48.0 GiB, trainer 31.0 GiB, swap 0.0 GiB",
        "120.0 GiB free", "in 4 min 48 s at the earliest (patience)", "goes on from the newest state that verifies",
        "2 times in place, still bit-identical", "nearly full: 0.9 GiB free", "6, the last 4 of them",
        "incident 6 at step 85: The loader stood still for 5 s.",
    ):  # fmt: skip
        assert part in text


def test_what_no_sensor_tells_is_unknown() -> None:
    """Not 0, not empty: a missing sensor is no healthy one."""
    bare = Point(at=AT, attempt=2, phase="step", step=1)
    text = drawn(live.view(snapshot(point=bare, phase_for=None, limits=(), pace=Pace(), planned_steps=None)))
    assert "busy unknown, memory unknown, power unknown" in text
    assert "machine unknown, trainer unknown, swap unknown" in text
    assert "step for unknown" in text
    assert "a step takes unknown" in text
    assert "unknown left" in text
    assert "120 of unknown" in text


@pytest.mark.parametrize(("point", "words"), [(None, "unknown"), (FULL.point, "the last sample is 10 min old")])
def test_an_old_sample_says_nothing_about_now(point: Point | None, words: str) -> None:
    """Its supervisor may be gone since."""
    old = replace(point, at=AT - 600) if point else None
    text = drawn(live.view(snapshot(point=old)))
    assert words in text
    assert "busy" not in text


def test_nothing_happens_at_a_limit_that_nobody_watches() -> None:
    """And it says what to do."""
    text = drawn(live.view(snapshot(watched=False)))
    assert "nobody watches" in text
    assert "stacks are kept" not in text


def test_a_dry_run_only_tells() -> None:
    """It promises no restart."""
    assert "only told" in drawn(live.view(snapshot(dry=True)))


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_run_that_is_over_has_no_limits_and_no_time_left(state: str) -> None:
    """Its reason is said, and its steps are those that it embodies."""
    over = snapshot(state=state, phase=None, reason=f"{state}: because", applied_steps=100, watched=False)
    text = drawn(live.view(over))
    assert f"{state}: because" in text
    assert "100/400 25 %" in text
    assert "left" not in text
    assert "next" not in text


def test_the_wait_before_the_next_attempt_is_shown() -> None:
    """While no trainer lives."""
    text = drawn(live.view(snapshot(phase=None, next_attempt_at=AT + 45, reason="restart: it backs off")))
    assert "restart: it backs off; next attempt in 45 s" in text


def test_foreign_output_cannot_move_or_colour_the_terminal() -> None:
    """Nor is it read as markup."""
    foreign = "\x1b[2J\x1b[31mred\x07 [bold]not markup[/bold] \x9b5m"
    incident = {"step": 1, "words": foreign}
    text = drawn(live.view(snapshot(lines=[foreign], reason=foreign, incidents=[incident])), color=True)
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "\x9b" not in text
    assert text.count("[bold]not markup[/bold]") == 3


def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NO_COLOR."""
    assert "\x1b[1;36m" in drawn(live.view(FULL), color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "36m" not in drawn(live.view(FULL), color=True)


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    """The curve and the bar too: no question mark stands for them."""
    plain = drawn(live.view(snapshot()), 80, encoding="ascii")
    assert "?" not in plain
    assert "_" in plain  # the lowest level
    assert "\u2581" in drawn(live.view(snapshot()), 80)


def test_a_curve_shows_the_means_of_its_values() -> None:
    """As many signs as there is room for, from the lowest to the highest; equal values are a flat line."""
    assert live.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8, "01234567") == "01234567"
    assert live.sparkline([0, 0, 7, 7], 2, "01234567") == "07"
    assert live.sparkline([3.0] * 90, 5, "01") == "00000"
    assert live.sparkline([1.0], 5, "01") == "0"
    assert live.sparkline([], 5) == ""


@pytest.mark.parametrize("width", [60, 120])
def test_several_runs_are_a_line_each(width: int) -> None:
    """With state, steps and the time left."""
    runs = [snapshot(), snapshot(watched=False), snapshot(state="stopped", phase=None, applied_steps=100)]
    header, *lines = drawn(live.table(runs), width).splitlines()
    assert len(lines) == 3
    assert "incidents" in header or "inc" in header
    for line, parts in zip(lines, [("running", "120/400"), ("unwatched",), ("stopped", "100/400")], strict=True):
        assert all(part in line for part in parts)


def test_lines_of_the_output_can_be_left_out() -> None:
    """Where the terminal is low."""
    assert "two" in drawn(live.view(snapshot()))
    assert "last lines" not in drawn(live.view(snapshot(), lines=0))


def test_only_a_trouble_says_what_was_best() -> None:
    """The trouble measures it otherwise, and two figures of one name contradict each other."""
    slow = snapshot(troubles=["steps take 26.8 s by now, 2.0 times as long as at best in this attempt (13.4 s)"])
    assert drawn(live.view(slow)).count("best") == 1


def test_a_stopped_run_that_saved_nothing_shows_how_far_it_came() -> None:
    """And that nothing of it was saved, as by a trainer without states."""
    stopped = snapshot(state="stopped", phase=None, step=40, planned_steps=100, applied_steps=0)
    assert "40/100 40 %, none of them saved" in drawn(live.view(stopped))
    assert "40/100" in drawn(live.table([stopped]))
