"""Laws of the timeline: bounded, readable whatever happened to the file, and no reason for a run to end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from fluxguard.clock import FakeClock
from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import noticing, timeline
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.ledger import Ledger, read
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.host import Host
from fluxguard.supervisor.sensing.output import Shown, shown_after
from fluxguard.supervisor.sensing.processes import Usage
from fluxguard.supervisor.timeline import Point, point
from tests.supervisor.histories import BEAT, look


def made(tmp_path: Path) -> RunDir:
    """Return a run."""
    run = RunDir(tmp_path / "out")
    run.create()
    return run


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    """What is unknown stays unknown."""
    run = made(tmp_path)
    points = [
        Point(at=1.5, attempt=1, phase="load", step=0),
        Point(at=2.5, attempt=1, phase="step", step=3, loss=0.5, gpu_percent=99.0, gpu_used=5, watts=1.5, disk_free=7),
    ]
    for one in points:
        timeline.append(run, one)
    assert timeline.read(run) == points


def test_the_file_stays_small_and_keeps_the_whole_run(tmp_path: Path) -> None:
    """It loses every second sample, and still holds the first and the last."""
    run = made(tmp_path)
    for number in range(2000):
        timeline.append(run, Point(at=float(number), attempt=1, phase="step", step=number), largest=20_000)
    found = timeline.read(run)
    assert run.timeline.stat().st_size <= 20_000
    assert (found[0].step, found[-1].step) == (0, 1999)
    assert [one.step for one in found] == sorted(one.step for one in found)


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    """Also those of a version that is not known, and with keys that are not."""
    run = made(tmp_path)
    timeline.append(run, Point(at=1.0, attempt=1, phase="step", step=1))
    lines = [
        b"\xff",
        b"[]",
        b"5",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "at": "x", "attempt": 1, "phase": "a", "step": 1}',
        b'{"version": 1, "at": 2, "attempt": 1, "phase": "b", "step": 2, "new": 5}',
        b'{"versi',
    ]
    with run.timeline.open("ab") as file:
        file.write(b"\n".join(lines))
    assert [one.step for one in timeline.read(run)] == [1, 2]
    assert timeline.read(RunDir(tmp_path / "none")) == []


def test_a_disk_that_takes_nothing_harms_nobody(tmp_path: Path) -> None:
    """The picture is lost, the run goes on."""
    timeline.append(RunDir(tmp_path / "none"), Point(at=1.0, attempt=1, phase="step", step=1))


def test_a_look_becomes_a_point() -> None:
    """Over the cards of the training; a loss that is no number is left out."""
    cards = (
        Card(index=0, used=10, utilisation=80.0, watts=100.0, held={7: 10}),
        Card(index=1, used=20, utilisation=100.0, watts=None, held={7: 20}),
        Card(index=2, used=40, utilisation=0.0, watts=10.0, held={}),
    )
    seen = replace(
        look(5.0, beat=replace(BEAT, loss=math.nan)),
        usage=Usage(1.0, 1, ((7, "python", "running"),), 123),
        gpus=cards,
        host=Host(available=10, total=30, swap_used=1),
        disk_free=9,
    )
    assert point(seen, at=1.0, attempt=2, step=5) == Point(
        at=1.0, attempt=2, phase="step", step=5, loss=None, gpu_percent=90.0, gpu_used=30, watts=100.0, ram_used=20,
        trainer_rss=123, swap_used=1, disk_free=9,
    )  # fmt: skip


def notice(run: RunDir, ledger: Ledger, uuid: str, beat: Beat) -> None:
    """Notice a look."""
    attempt = Attempt(uuid=uuid, number=1, start_step=0, log_from=0, at=0.0, keeper=None)
    noticing.notice(run, ledger, attempt, History.begun(look(1.0, beat=beat)), Limits(), at=1.0, step=5)


def test_a_trouble_is_told_once_per_attempt(tmp_path: Path) -> None:
    """Also by the next supervisor; of the next attempt it is told again. Each time a sample is kept."""
    run, beat = made(tmp_path), replace(BEAT, retries=2)
    first = Ledger(run.ledger, FakeClock())
    for uuid in ("a", "a", "b"):
        notice(run, first, uuid, beat)
    notice(run, Ledger(run.ledger, FakeClock()), "b", replace(beat, retries=9))
    told = [event for event in read(run.ledger) if event.kind == "trouble"]
    assert [(event.values["attempt"], event.values["kind"]) for event in told] == [
        ("a", "allocator retries"),
        ("b", "allocator retries"),
    ]
    assert told[0].values["step"] == 5
    assert len(timeline.read(run)) == 4
    assert noticing.words(read(run.ledger), "b", replace(beat, retries=9))[0].startswith(
        "the GPU's memory is full: its allocator had to make room 9 times"
    )
    assert noticing.words(read(run.ledger), "b", None)[0].count("2 times") == 1


def test_the_newest_sample_is_told_in_words(tmp_path: Path) -> None:
    """What is unknown is said to be, and costs nobody the rest."""
    run, gib = made(tmp_path), 1 << 30
    assert timeline.last(run) is None
    timeline.append(
        run, Point(at=1.0, attempt=1, phase="step", step=1, gpu_percent=99.0, gpu_used=20 * gib, watts=301.0)
    )
    assert timeline.words(timeline.last(run) or Point(at=0, attempt=0, phase="", step=0)) == (
        "GPU 99 % busy at 301 W, 20.0 GiB in use; memory unknown in use; disk unknown free"
    )
    for number in range(100):
        timeline.append(run, Point(at=number, attempt=1, phase="step", step=number, ram_used=2 * gib, disk_free=gib))
    with run.timeline.open("ab") as file:
        file.write(b'{"version": 1, "torn')
    newest = timeline.last(run)
    assert newest is not None
    assert newest.step == 99
    assert timeline.words(newest) == "GPU unknown; memory 2.0 GiB in use; disk 1.0 GiB free"


def test_what_the_output_tells_again_and_again_holds_no_secret(tmp_path: Path) -> None:
    """Neither one that is known by its look nor one that is known by its value, digits and all."""
    run = made(tmp_path)
    ledger = Ledger(run.ledger, FakeClock())
    attempt = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=0.0, keeper=None)
    lines = [
        f"[{n}] upload failed: hf_AbCdEfGh1234567890XYZabcdefgh12 " + "x" * 140 + " s3cr3t-value" for n in range(12)
    ]
    history = History.begun(look(1.0, shown=shown_after(Shown(), lines)))
    noticing.notice(run, ledger, attempt, history, Limits(), at=1.0, step=5, secrets={"s3cr3t-value"})
    (told,) = (event for event in read(run.ledger) if event.kind == "trouble")
    assert told.values["kind"] == "repeated error"
    assert "upload failed" in told.values["words"]
    for part in ("AbCdEfGh", "XYZabcdefgh", "s3cr3t", "cr#t"):
        assert part not in run.ledger.read_text()
