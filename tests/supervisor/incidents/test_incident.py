"""Laws of report.json: the one truth, readable in every format there ever was."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard import rundir
from fluxguard.rundir import RunDir, read_json, write_json
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.incidents import incident as incidents
from fluxguard.supervisor.incidents.incident import Case, Incident
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.policy import Decision
from fluxguard.supervisor.sensing.processes import Ending
from tests.supervisor.incidents.made import incident

FIRST = Path(__file__).with_name("report-format-1.json")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory."""
    made = RunDir(tmp_path)
    made.create()
    return made


def case(**changes: Any) -> Case:
    """Return a case of a hang that is resumed."""
    values: dict[str, Any] = {
        "number": 1, "at": 5.0, "attempt": 1,
        "symptom": Symptom(kind="idle", phase="step", since=300.0),
        "diagnosis": Diagnosis(cause="no progress (step)", words="W.", proof=("shown",), remedies=("a", "b")),
        "decision": Decision(action="restart", reason="because", after=15.0),
        "ending": Ending(("SIGTERM",), (), 0.1),
        "evidence": Evidence(step=12, lines=["one", "two"]),
        "detected_after": 300.1234, "start_step": 10, "figures": {}, "notes": ["torn"], "state": Path("/x/step-10"),
        "scene": Scene(missing={"native-stacks.txt": "not available: no"}), "troubles": ["slow"],
    }  # fmt: skip
    return Case(**{**values, **changes})


def test_an_incident_holds_why_and_what_was_done() -> None:
    """The reason of the decision, the proof, the state it goes on from and what could not be taken."""
    made = incidents.of(case())
    assert (made.format, made.resumed_step, made.lost_steps, made.state) == (2, 10, 2, "step-10")
    assert made.decision == "Restarted, after 15 s: because."
    assert (made.proof, made.remedies, made.troubles) == (("shown",), ("a", "b"), ("slow",))
    assert (made.lines, made.notes, made.missing) == (
        ("one", "two"),
        ("torn",),
        {"native-stacks.txt": "not available: no"},
    )
    stopped = incidents.of(case(decision=Decision(action="stop", reason="enough")))
    assert (stopped.resumed_step, stopped.decision) == (None, "Stopped: enough.")


def test_what_is_written_is_read_back_equal(run: RunDir) -> None:
    """Whatever is in it."""
    made = incident()
    path = incidents.write(
        run,
        made,
        Evidence(lines=["x"], stacks={7: "main (a.py:1)"}),
        Scene(files={"processes.txt": "p"}),
        (),
        frozenset(),
    )
    again = incidents.read(path.with_name("report.json"))
    assert again is not None
    assert json.loads(json.dumps(incidents.to_mapping(again))) == json.loads(
        json.dumps(incidents.to_mapping(replace(made, files=("last-lines.txt", "stacks.txt", "processes.txt"))))
    )
    assert incidents.numbers(run) == [2]
    assert all(
        stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
        for name in [*again.files, "report.json", "report.md"]
    )


def test_a_report_of_the_first_format_still_loads() -> None:
    """As it was written before there was proof, a timeline or a list of files: those are empty."""
    old = incidents.read(FIRST)
    assert old is not None
    assert (old.format, old.number, old.cause, old.resumed_step) == (1, 1, "block swap", 24)
    assert (old.proof, old.timeline, old.files, old.missing, old.state) == ((), (), (), {}, None)
    assert old.notes == ["the state of step 26 is torn"]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"proof": "one"}, "proof", ()),
        ({"proof": [1]}, "proof", ()),
        ({"timeline": [1]}, "timeline", ()),
        ({"missing": ["x"]}, "missing", {}),
        ({"format": "new"}, "format", 1),
        ({"from": "the future"}, "number", 2),
        ({"state": None}, "state", None),
        ({"resumed_step": None}, "resumed_step", None),
    ],
)
def test_what_is_of_the_wrong_kind_counts_as_not_written(change: dict[str, Any], field: str, value: object) -> None:
    """A report that somebody edited, or that a later fluxguard wrote, still tells what it can."""
    found = incidents.of_mapping({**incidents.to_mapping(incident()), **change})
    assert found is not None
    assert getattr(found, field) == value


@pytest.mark.parametrize(
    "change",
    [
        {"number": "2"},
        {"words": None},
        {"step": True},
        {"figures": []},
        {"cause": 1},
        {"at": float("nan")},
        {"at": float("inf")},
        {"step": 10**400},
    ],
)
def test_a_report_without_what_it_is_about_is_none(change: dict[str, Any]) -> None:
    """Nothing is made up."""
    assert incidents.of_mapping({**incidents.to_mapping(incident()), **change}) is None


def test_a_file_that_is_no_report_is_none(tmp_path: Path) -> None:
    """Torn, foreign, missing."""
    (tmp_path / "a.json").write_text('{"version": 1, "number"')
    write_json(tmp_path / "b.json", {"x": 1})
    assert [incidents.read(tmp_path / name) for name in ("a.json", "b.json", "c.json")] == [None, None, None]


def test_the_report_comes_before_what_lies_beside_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up costs the evidence first, the report last, and the decision never."""
    whole = rundir.write_whole

    def full(path: Path, data: bytes) -> None:
        if path.name not in ("report.json", "report.md"):
            raise OSError(28, "No space left on device")
        whole(path, data)

    monkeypatch.setattr(incidents, "write_whole", full)
    evidence = Evidence(lines=["x"], stacks={1: "s"})
    path = incidents.write(run, incident(), evidence, Scene(files={"a.txt": "b"}), [Path("/nowhere/0")], frozenset())
    assert sorted(one.name for one in path.parent.iterdir()) == ["report.json", "report.md"]
    assert incidents.read(path.with_name("report.json")) is not None


def test_the_report_can_be_read_as_any_file_of_the_run(run: RunDir) -> None:
    """Older readers know its version, and find in it what they look for."""
    path = incidents.write(run, incident(), Evidence(), Scene(), (), frozenset())
    values = read_json(path.with_name("report.json"))
    assert values is not None
    assert (values["version"], values["format"], values["advice"]) == (1, 2, "If it comes again: look at the disk.")
    assert isinstance(incidents.of_mapping(values), Incident)
