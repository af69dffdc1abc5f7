"""Laws of a remedy in a run: it is taken, told, kept for the rest of the run, and kept from whoever changes the job."""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fluxguard.clock import SystemClock
from fluxguard.launch.remedies import CACHE_ASIDE, FEWER_WORKERS, MORE_SWAP, Change
from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger, mending, record, setback
from fluxguard.supervisor.causes.diagnosis import Diagnosis
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.showing.telling import text
from fluxguard.supervisor.supervise import Supervision
from tests.supervisor.conftest import FakeRun

ALL = [float(step) for step in range(40)]
TOLD = ("--learning_rate 1 (was 2)",)


def other(argv: tuple[str, ...], remedy: str) -> Change | None:
    """Stand in for a remedy: one rung, visible in the command."""
    if remedy != FEWER_WORKERS or "--learning_rate" in argv:
        return None
    return Change(remedy=remedy, argv=(*argv, "--learning_rate", "1"), flags=TOLD)


def supervision(run: FakeRun) -> Supervision:
    """Return a supervision whose trainer can do something otherwise."""
    made = run.supervision()
    made.trainee = replace(made.trainee, changed=other)
    return made


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_what_would_repeat_itself_is_tried_otherwise_and_stays_so(
    fake: Callable[..., FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the attempts after the next, under a supervisor that knows the ledger only."""
    cause = Diagnosis(cause="GPU memory full", words="It was full.", again=False, remedies=(FEWER_WORKERS,), place="x")
    monkeypatch.setattr(setback, "diagnose", lambda *_: cause)
    run = fake()
    run.fault("raise", 6)
    first = supervision(run)
    told = [None]
    first.ledger._subscribers.append(lambda event: told.append(text(event)))  # type: ignore[arg-type]
    assert first.to_the_end().finished
    assert run.embodied() == ALL
    attempts = [event for event in ledger.read(run.run.ledger) if event.kind == "attempt"]
    assert ["--learning_rate" in one.values["argv"] for one in attempts] == [False, True]
    assert attempts[1].values["notes"] == [
        "otherwise than the command says: fewer loader workers (--learning_rate 1 (was 2))"
    ]
    assert "the next attempt is made otherwise: fewer loader workers (--learning_rate 1 (was 2))" in told
    seen = status.read(run.run)
    assert seen is not None
    assert [one["words"] for one in seen.remedies] == ["fewer loader workers (--learning_rate 1 (was 2))"]
    assert seen.decided == "", "it is finished: no decision is open"
    (run.run.output_dir / "fake.safetensors").unlink()
    run.fault("raise", 2)
    second = supervision(run)
    outcome = second.to_the_end()
    assert not outcome.finished
    assert outcome.reason.startswith("It was full. Another attempt would end the same way")
    last = [event for event in ledger.read(run.run.ledger) if event.kind == "attempt"][-1]
    assert "--learning_rate" in last.values["argv"]


def decided(made: Ledger, **values: object) -> None:
    made.add("decision", **{"action": "restart", "reason": "r", "after": 0.0, "remedy": None, "flags": [], **values})


def test_another_command_begins_without_what_was_done_otherwise(tmp_path: Path) -> None:
    """The same one keeps it, however often it is supervised again."""
    made = Ledger(tmp_path / "ledger.jsonl", SystemClock())
    made.add("job", hardened=False, weights="w", command="a")
    decided(made, remedy=FEWER_WORKERS, flags=["--x 1"])
    decided(made)
    made.add("job", hardened=False, weights="w", command="a")
    assert [one.words for one in record.remedies(made.events)] == ["fewer loader workers (--x 1)"]
    made.add("job", hardened=False, weights="w", command="b")
    assert record.remedies(made.events) == []


def test_several_rungs_of_a_remedy_are_told_once(tmp_path: Path) -> None:
    """With the net change; the command is made by every rung."""
    made = Ledger(tmp_path / "ledger.jsonl", SystemClock())
    made.add("job", hardened=False, weights="w", command="a")
    decided(made, remedy=MORE_SWAP, flags=["--blocks_to_swap 12 (was 0)"])
    decided(made, remedy=FEWER_WORKERS, flags=["--x 1"])
    decided(made, remedy=MORE_SWAP, flags=["--blocks_to_swap 24 (was 12)"])
    taken = record.remedies(made.events)
    assert [one.name for one in taken] == [MORE_SWAP, FEWER_WORKERS, MORE_SWAP]
    told = ["fewer loader workers (--x 1)", "more blocks swapped (--blocks_to_swap 24 (was 0))"]
    assert [one.words for one in record.net(taken)] == told


def test_a_ledger_of_before_has_no_remedies(tmp_path: Path) -> None:
    """And its decisions count as plain ones."""
    made = Ledger(tmp_path / "ledger.jsonl", SystemClock())
    made.add("job", hardened=False, weights="w")
    made.add("incident", number=1, cause="c", step=3, report=None)
    made.add("decision", action="restart", reason="r", after=7.0, next_attempt_at=1.0)
    assert record.remedies(made.events) == []
    assert [(one.after, one.remedy) for one in record.setbacks(made.events)] == [(7.0, None)]


def caches(folder: Path) -> tuple[Path, Path]:
    """Make a whole cache file and a broken one, whose name holds a space."""
    folder.mkdir()
    whole, broken = folder / "a_flux.npz", folder / "b c_flux.npz"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("latents.npy", bytes(5000))
    broken.write_bytes(whole.read_bytes()[:2000])
    return whole, broken


@pytest.mark.parametrize("proof", ["BadZipFile: {broken}: truncated", "in 'images/b c_flux.npz' (line 3)", "no name"])
def test_a_cache_file_that_is_proven_broken_is_set_aside(tmp_path: Path, proof: str) -> None:
    """Named or not; a whole one never, and nothing outside the folders of the data set."""
    whole, broken = caches(tmp_path / "images")
    elsewhere = caches(tmp_path / "other")[1]
    lines = [proof.format(broken=broken), f"also {elsewhere} and {whole}"]
    change = mending.offer(lines, [tmp_path / "images"], tmp_path, SystemClock())
    assert change is not None
    assert (change.remedy, change.files) == (CACHE_ASIDE, (str(broken),))
    mending.set_aside(change.files)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["a_flux.npz", "b c_flux.npz.broken"]
    assert elsewhere.exists()
    assert mending.offer(lines, [tmp_path / "images"], tmp_path, SystemClock()) is None


def test_what_became_whole_meanwhile_is_left(tmp_path: Path) -> None:
    """It is looked at again before it is touched."""
    whole, broken = caches(tmp_path / "images")
    broken.write_bytes(whole.read_bytes())
    mending.set_aside([str(broken)])
    assert broken.exists()
    assert RunDir(tmp_path).root.exists() is False


def test_a_share_that_does_not_answer_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is known to be broken, and the run goes on as without this remedy."""
    caches(tmp_path / "images")
    answers = threading.Event()
    monkeypatch.setattr(mending, "why_broken", lambda _: answers.wait(30))
    monkeypatch.setattr(mending, "_SEARCH_TAKES", 0.1)
    monkeypatch.setattr(mending, "_ONE_FILE", 0.1)
    try:
        assert mending.offer([], [tmp_path / "images"], tmp_path, SystemClock()) is None
        mending.set_aside([str(tmp_path / "images" / "b c_flux.npz")])
    finally:
        answers.set()


def test_a_decision_is_told_with_its_time_and_only_while_it_is_open() -> None:
    """A restart of yesterday evening would look like one of now."""
    decision = ledger.Event("decision", 0.0, {"action": "restart", "reason": "because"})
    assert re.fullmatch(r"restart: because \(at \d\d:\d\d\)", status._decided([decision]))
    assert status._decided([]) == ""
