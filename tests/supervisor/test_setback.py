"""Laws of what follows a death: the report may fail in any way, the decision and its line in the ledger never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger, setback, timeline
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit, History, Observation
from fluxguard.supervisor.incidents import incident, scrubbing
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.policy import Decision, Setback
from fluxguard.supervisor.restart import Restart
from fluxguard.supervisor.sensing.output import Shown
from fluxguard.supervisor.sensing.processes import Ending
from fluxguard.supervisor.setback import Gathered
from fluxguard.supervisor.timeline import Point

ATTEMPT = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=1.0, keeper=None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory."""
    made = RunDir(tmp_path)
    made.create()
    return made


def gathered(at: float = 100.0) -> Gathered:
    """Return what was seen of an attempt that was killed."""
    history = History.begun(Observation(now=5.0, exit=Exit(signal=9, at=99.0), beat=None, shown=Shown(), output=0))
    return Gathered(
        attempt=ATTEMPT,
        symptom=Symptom(kind="ended", phase="step", since=1.0),
        history=history,
        evidence=Evidence(exit=history.last.exit, step=7, lines=["last"]),
        figures={},
        ending=Ending((), (), 0.0),
        at=at,
        secrets=frozenset({"s3cret-value"}),
    )


def report(run: RunDir, book: Ledger) -> incident.Incident | None:
    """Report it; return what is in report.json."""
    diagnosis = Diagnosis(cause="killed", words="W.", advice="A.", proof=("p",))
    mine = Setback(cause="killed", origin="outside", place="", step=7, progressed=True)
    decision = Decision(action="restart", reason="because")
    setback.report(run, book, gathered(), diagnosis, mine, decision, Restart((), None))
    where = ledger.read(run.ledger)[-1].values["report"]
    return incident.read(Path(where).with_name("report.json")) if where else None


def test_the_report_tells_what_the_ledger_tells(run: RunDir) -> None:
    """The same words, the reason of the decision, the troubles before, the timeline."""
    book = Ledger(run.ledger, FakeClock())
    book.add("trouble", attempt="a", kind="slow", words="steps got slower", advice="", step=3)
    book.add("trouble", attempt="another", kind="slow", words="not this one", advice="", step=3)
    for at in (1.0, 50.0, 100.0, 101.0):
        timeline.append(run, Point(at=at, attempt=1, phase="step", step=int(at)))
    found = report(run, book)
    assert found is not None
    assert (found.words, found.decision) == ("W.", "Restarted: because.")
    assert list(found.troubles) == ["steps got slower"]
    assert [point["step"] for point in found.timeline] == [1, 50, 100]
    assert "loss" not in found.timeline[0]


@pytest.mark.parametrize(
    ("module", "name"), [(incident, "write_json"), (incident, "markdown"), (timeline, "read"), (scrubbing, "_files")]
)
def test_what_is_wrong_with_a_report_costs_the_report(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    """Never the line in the ledger, by which the next supervisor decides."""

    def broken(*_: object) -> None:
        raise RuntimeError("our own mistake")

    monkeypatch.setattr(module, name, broken)
    report(run, Ledger(run.ledger, FakeClock()))
    (event,) = ledger.read(run.ledger)
    assert (event.kind, event.values["cause"], event.values["number"]) == ("incident", "killed", 1)


def test_no_report_overwrites_another(run: RunDir) -> None:
    """Though the ledger has lost the line of the first, as on a full disk."""
    for _ in range(2):
        report(run, Ledger(run.ledger, FakeClock()))
        run.ledger.unlink()
    assert incident.numbers(run) == [1, 2]
