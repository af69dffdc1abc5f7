"""Laws of what was put right in place: told once each, never believed when it is not ours."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from fluxguard.cli import rendering
from fluxguard.clock import FakeClock
from fluxguard.rundir import VERSION, RunDir
from fluxguard.supervisor import record
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing.heals import Heals
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.telling import text

MARK = "0b9f7c1e-0000-4000-8000-000000000001"
LINE: dict[str, Any] = {
    "version": VERSION, "attempt": MARK, "rank": 0, "step": 12, "time": 1.7e9, "what": "a batch from the loader",
    "cause": "loader worker", "why": "worker process 4711 was stuck", "seconds": 61.234, "identical": True, "doubt": "",
    "file": None, "workers": [4711],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An output folder with a run directory."""
    made = RunDir(tmp_path)
    made.create()
    return made


def write(run: RunDir, *lines: dict[str, Any] | bytes, rank: int = 0, end: bytes = b"\n") -> None:
    """Append lines to the file of a rank."""
    with run.healed(rank).open("ab") as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + end)


def test_each_heal_is_seen_once_in_the_order_it_came(run: RunDir) -> None:
    """Of all ranks, while they append."""
    heals = Heals(run, MARK)
    assert heals.look() == ()
    write(run, LINE)
    write(run, {**LINE, "rank": 1, "what": "a read"}, rank=1)
    assert [(heal.rank, heal.number, heal.what) for heal in heals.look()] == [
        (0, 1, "a batch from the loader"), (1, 1, "a read"),
    ]  # fmt: skip
    write(run, {**LINE, "step": 13})
    assert [(heal.rank, heal.number, heal.step) for heal in heals.look()] == [(0, 1, 12), (1, 1, 12), (0, 2, 13)]
    assert heals.look() is heals.look()


def test_another_attempt_is_another_story(run: RunDir) -> None:
    """The files are appended to over all attempts."""
    write(run, {**LINE, "attempt": "before"}, LINE, {**LINE, "attempt": ""})
    assert len(Heals(run, MARK).look()) == 1


def test_a_torn_line_is_read_when_it_is_whole(run: RunDir) -> None:
    """A reader may meet the middle of a write."""
    heals = Heals(run, MARK)
    whole = json.dumps(LINE).encode()
    write(run, whole[:40], end=b"")
    assert heals.look() == ()
    write(run, whole[40:])
    assert len(heals.look()) == 1


BROKEN: list[bytes] = [
    b"", b"{", b"null", b"[]", b'"healed"', b"\xff\xfe", b"[" * 100_000, b'{"version": 1}',
    *(json.dumps({**LINE, name: value}).encode() for name, value in [
        ("version", 99), ("step", "many"), ("step", None), ("step", math.inf), ("time", "now"), ("seconds", math.nan),
        ("seconds", math.inf), ("seconds", -1), ("seconds", True), ("seconds", 10**400), ("what", None), ("why", 7),
        ("cause", []), ("doubt", 1), ("file", 5), ("workers", 5), ("workers", ["x"]), ("attempt", None),
        ("attempt", {}),
    ]),
    *(json.dumps({key: LINE[key] for key in LINE if key != name}).encode() for name in ("step", "what", "why")),
]  # fmt: skip


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_foreign_line_is_passed_over(run: RunDir, line: bytes) -> None:
    """And the good ones around it are not."""
    write(run, LINE, line, LINE)
    assert len(Heals(run, MARK).look()) == 2


def test_random_bytes_are_no_heal(run: RunDir) -> None:
    """Whoever wrote them."""
    chance = random.Random(7)
    heals = Heals(run, MARK)
    for _ in range(50):
        write(run, chance.randbytes(200))
        assert heals.look() == ()
    (run.root / "healed.x.jsonl").write_bytes(json.dumps(LINE).encode())
    (run.root / "healed.7.jsonl").mkdir()
    assert heals.look() == ()


def test_a_flood_is_bounded(run: RunDir) -> None:
    """Of lines, and of one line without an end."""
    write(run, *[LINE] * 3000)
    write(run, b"x" * (5 << 20), rank=1, end=b"")
    heals = Heals(run, MARK)
    for _ in range(10):
        seen = heals.look()
    assert len(seen) == 1000


def test_the_ledger_keeps_each_heal_once(run: RunDir) -> None:
    """Whichever supervisor saw it first."""
    write(run, LINE, {**LINE, "step": 14})
    for _ in range(2):
        ledger = Ledger(run.ledger, FakeClock())
        record.healed(ledger, Heals(run, MARK).look()[:1])
        record.healed(ledger, Heals(run, MARK).look())
        assert [event.values["step"] for event in ledger.events] == [12, 14]


def ledger_of(run: RunDir, *heals: dict[str, Any]) -> Ledger:
    """Return a ledger of one attempt with these heals."""
    ledger = Ledger(run.ledger, FakeClock())
    ledger.add("job", hardened=True, weights="/out/x.safetensors")
    ledger.add("attempt", attempt=MARK, number=1, start_step=0, log_from=0, state=None)
    write(run, *heals)
    record.healed(ledger, Heals(run, MARK).look())
    return ledger


def test_a_heal_is_told_in_one_sentence(run: RunDir) -> None:
    """On the command line and in the status, with what is in doubt."""
    doubtful = {**LINE, "identical": False, "doubt": "the order of the samples", "file": "/data/a.npz"}
    ledger = ledger_of(run, LINE, doubtful)
    said = [text(event) for event in ledger.events[-2:]]
    assert said == [
        "put right in place at step 12 after 61.2 s: a batch from the loader, because worker process 4711 was stuck; "
        "the training goes on bit for bit as it would have",
        "put right in place at step 12 after 61.2 s: a batch from the loader (/data/a.npz), because worker process "
        "4711 was stuck; the training goes on though maybe not identically: the order of the samples",
    ]
    seen = status.read(run)
    assert seen is not None
    assert [heal["words"] for heal in seen.healed] == said
    assert [heal["identical"] for heal in seen.to_mapping()["healed"]] == [True, False]
    assert [line for line in rendering.status(seen.to_mapping()) if line in said] == said
    json.dumps(seen.to_mapping(), allow_nan=False)


def test_the_end_says_how_often_and_whether_it_is_identical(run: RunDir) -> None:
    """Nothing when nothing was healed."""
    doubt = {**LINE, "identical": False, "doubt": "another order of the samples"}
    assert record.healing(ledger_of(run).events) == ""
    assert record.healing(ledger_of(run, LINE).events) == "healed once in place, still bit-identical"
    assert record.healing(ledger_of(run, LINE).events) == "healed 2 times in place, still bit-identical"
    assert record.healing(ledger_of(run, doubt).events) == (
        "healed 3 times in place, maybe not bit-identical any more (another order of the samples)"
    )


@pytest.mark.parametrize(
    ("start", "state", "doubted"), [(14, "s", True), (12, "s", True), (11, "s", False), (0, None, False)]
)
def test_what_was_trained_anew_is_no_more_in_doubt(run: RunDir, start: int, state: str | None, doubted: bool) -> None:
    """A later attempt that starts before the heal undoes it."""
    ledger = ledger_of(run, {**LINE, "identical": False, "doubt": "why"})
    ledger.add("attempt", attempt="next", number=2, start_step=start, log_from=0, state=state)
    assert ("maybe not" in record.healing(ledger.events)) is doubted
