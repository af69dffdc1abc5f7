"""Laws of watching: what sensors see of a run, the page that tells of it, and patterns of the user's own for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from fluxguard import heartbeat
from fluxguard.clock import SystemClock
from fluxguard.heartbeat import Heart
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import order
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting import detectors, signs, troubles
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.ledger import read
from fluxguard.supervisor.sensing import processes
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.sensors import Sensors
from tests.conftest import ROOT
from tests.supervisor.test_troubles import CHANGES

PAGE = (ROOT / "docs" / "watching.md").read_text("utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "watching"
MARK = uuid.uuid4()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run that this process stands for."""
    one = RunDir(tmp_path / "out")
    one.create()
    (tmp_path / "beats").mkdir()
    write_json(one.run, {"beats": str(tmp_path / "beats")})
    return one


def sensors(run: RunDir) -> Sensors:
    """Return the sensors of its attempt."""
    keeper = Identity.of(os.getpid())
    attempt = Attempt(uuid=str(MARK), number=1, start_step=0, log_from=0, at=0.0, keeper=keeper)
    return Sensors(run, attempt, SystemClock())


def heart(run: RunDir, rank: int, mark: uuid.UUID = MARK, **fields: object) -> None:
    """Beat once as a rank."""
    one = Heart(heartbeat.path_for(run.beats(), rank), rank=rank, attempt=mark.bytes)
    for name, value in fields.items():
        setattr(one, name, value)
    one.beat()
    one.mute()


def test_all_ranks_of_this_machine_are_seen(run: RunDir) -> None:
    """By rank, those of an earlier attempt left out; the lowest speaks for the attempt, also on a second machine."""
    heart(run, 11, step=4)
    heart(run, 8, step=5)
    heart(run, 9, uuid.uuid4(), step=99)
    seen = sensors(run).look(sample=True)
    assert [(beat.rank, beat.step) for beat in seen.ranks] == [(8, 5), (11, 4)]
    assert seen.beat == seen.ranks[0]


def test_a_rank_that_comes_later_is_seen_at_the_next_sample(run: RunDir) -> None:
    """Looks between samples read those that are known."""
    eyes = sensors(run)
    heart(run, 0)
    assert len(eyes.look().ranks) == 1
    heart(run, 1)
    assert len(eyes.look(sample=True).ranks) == 2


def test_what_cannot_be_seen_is_none(run: RunDir) -> None:
    """No card on this machine, nothing sampled, no answer of the disk yet."""
    seen = sensors(run).look()
    assert (seen.beat, seen.ranks, seen.host, seen.usage, seen.disk_free) == (None, (), None, None, None)


def test_what_patterns_capture_is_progress(run: RunDir) -> None:
    """A trainer that is not known at all shows its steps and its loss by them."""
    run.watch_log.write_bytes((EXAMPLE / "watch.yaml").read_bytes())
    run.log.write_text("weights are loaded\nupdate 7 of 20, objective 0.25\n")
    seen = sensors(run).look()
    assert (seen.shown.bar, seen.shown.total, seen.shown.loss, seen.phase) == (7, 20, 0.25, "step")
    assert set(History.begun(seen).log.first) == {"weights", "updates", "objective"}


def test_the_page_tells_every_symptom_and_trouble() -> None:
    """And shows the example as it is."""
    rows = set(re.findall(r"^\| ([^|`]+?) \|", PAGE, re.MULTILINE))
    kinds = {"ended", "given up", "overdue", "watched log", "idle", "stuck"}
    assert len(detectors.DETECTORS) == len(kinds)
    assert kinds <= rows
    told = {kind.partition(":")[0] for kind in CHANGES} | {
        "slow",
        "GPU memory spills",
        "rank lags",
        "memory nearly full",
    }
    assert told | {"optimizer stopped"} <= {name for row in rows for name in row.replace(":", ",").split(", ")}
    assert (EXAMPLE / "watch.yaml").read_text() in PAGE


def test_the_figures_on_the_page_are_those_in_use() -> None:
    """Thresholds are said to users as they are."""
    assert f"{troubles._SLOWER:g}" == "2"
    assert f"power below {100 * signs._LITTLE_WORK:.0f} %" in PAGE
    assert f"{100 * troubles._FULL_CONTAINER:.0f} % of the container" in PAGE
    assert f"{100 * troubles._ALMOST_NO_MEMORY:.0f} % of the machine" in PAGE


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["supervise", "--watch-log", "a.yaml", "t.sh"], ["supervise", "t.sh"]),
        (["supervise", "--watch-log=a.yaml", "t.sh"], ["supervise", "t.sh"]),
        (["supervise", "--", "t", "--watch-log", "x"], ["supervise", "--", "t", "--watch-log", "x"]),
        (["supervise", "t.sh"], ["supervise", "t.sh"]),
    ],
)
def test_who_takes_over_is_not_told_of_the_file_again(words: list[str], left: list[str]) -> None:
    """The run has a copy; the file may be gone by then. What follows `--` is the trainer's."""
    assert order.without_values(words, "--watch-log") == left


def fluxguard(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "fluxguard", *words], cwd=cwd, capture_output=True, text=True, timeout=100
    )


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_the_example_is_restarted_and_finishes(tmp_path: Path) -> None:
    """Nothing of fluxguard in it, no bar that is known: the user's own patterns end its hang."""
    out = tmp_path / "mine"
    command = ["--", sys.executable, str(EXAMPLE / "train.py"), str(out)]
    done = fluxguard(
        "supervise", "--output-dir", str(out), "--watch-log", str(EXAMPLE / "watch.yaml"), *command, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = read(RunDir(out).ledger)
    incident = next(event for event in told if event.kind == "incident")
    assert (incident.values["cause"], incident.values["step"]) == ("watched log: updates", 11)
    assert 3 <= incident.values["detected_after_s"] <= 3 + 1.5
    assert told[-1].kind == "finished"


@pytest.mark.integration
def test_a_file_that_is_wrong_starts_nothing(tmp_path: Path) -> None:
    """Exit code 2, with the file and the field."""
    (tmp_path / "mine.yaml").write_text("- {name: a, pattern: '('}")
    out = tmp_path / "out"
    command = [
        "--output-dir",
        str(out),
        "--watch-log",
        "mine.yaml",
        "--",
        sys.executable,
        str(EXAMPLE / "train.py"),
        "x",
    ]
    done = fluxguard("supervise", *command, cwd=tmp_path)
    assert done.returncode == 2
    assert "mine.yaml: a: pattern" in done.stderr
    assert not (out / ".fluxguard" / "ledger.jsonl").exists()


@pytest.mark.integration
def test_the_processes_of_an_attempt_are_seen_with_their_memory() -> None:
    """State, processor time, I/O and bytes held; waits in the kernel are named where there are any."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; held = b'x' * (1 << 26); sys.stdin.read()"], stdin=subprocess.PIPE
    )
    assert child.stdin is not None
    try:
        keeper, end = Identity.of(os.getpid()), time.monotonic() + 10
        seen = processes.usage(keeper)
        while (seen is None or (seen.rss or 0) < 1 << 26) and time.monotonic() < end:
            seen = processes.usage(keeper)
        assert seen is not None
        assert child.pid in [pid for pid, _, _ in seen.states]
        assert (seen.rss or 0) >= 1 << 26
        assert {pid for pid, _ in seen.waits} <= set(seen.unkillable)
    finally:
        child.stdin.close()
        child.wait(10)
