"""Laws of what ranks get in their environment: a flight recorder, and more words where somebody asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fluxguard.clock import FakeClock
from fluxguard.launch import ranks
from fluxguard.launch.ranks import Ranks
from fluxguard.rundir import RunDir
from fluxguard.supervisor import debugging
from fluxguard.supervisor.incidents import recorder, versions
from fluxguard.supervisor.ledger import Event, Ledger

TWO = Ranks(launcher="torchrun", per_node=2)
ASKED = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO", "PYTHONFAULTHANDLER": "1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that may begin."""
    made = RunDir(tmp_path / "out")
    made.create()
    return made


def environment(run: RunDir, *, by: Ranks | None = TWO, debug: bool = False, **env: str) -> dict[str, str]:
    """Return the environment of an attempt of this interpreter."""
    return debugging.environment(run, env, [sys.executable], by, debug=debug)


def at(run: RunDir) -> str:
    """Return where the recorder of a run writes, but for the rank."""
    return str(run.root / "flight-recorder" / "rank_")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2.13.0+cpu", {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE"}),
        ("2.5.1", {*recorder.PREFIXES, *recorder.SIZES}),
        ("", {*recorder.PREFIXES, *recorder.SIZES}),
    ],
)
def test_several_ranks_record_their_collectives(
    run: RunDir, version: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names that their torch knows: of an older one a newer one warns."""
    monkeypatch.setattr(versions, "of_library", lambda *_: version)
    found = environment(run)
    assert set(found) == {*names, "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert found["TORCH_FR_DUMP_TEMP_FILE"] == at(run)
    assert found["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert Path(at(run)).parent.is_dir()


@pytest.mark.parametrize("by", [None, Ranks(launcher="accelerate", per_node=1)])
def test_one_rank_records_nothing(run: RunDir, by: Ranks | None) -> None:
    """It waits for nobody, and its environment stays as it is."""
    assert environment(run, by=by, HOME="/home/me") == {"HOME": "/home/me"}


def test_what_the_user_has_set_of_the_recorder_stays(run: RunDir) -> None:
    """By whichever name."""
    env: dict[str, Any] = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/x", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    found = environment(run, TORCH_NCCL_DUMP_ON_TIMEOUT="0", **env)
    assert found == {**env, "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}


def test_who_asks_gets_more_words_on_all_ranks(run: RunDir) -> None:
    """Whatever was set before: half of them would keep the other half waiting."""
    found = environment(run, by=None, debug=True, TORCH_DISTRIBUTED_DEBUG="OFF", HOME="/home/me")
    assert found == {"HOME": "/home/me", **ASKED}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("accelerate launch --cpu --num_processes 2 x.py", True),
        ("accelerate launch --num_processes 2 --cpu -m x", True),
        ("accelerate launch --cpu --num_processes 1 x.py", False),
        ("accelerate launch --cpu x.py", False),
        ("accelerate launch --cpu --num_processes 2 --mpirun_hostfile hosts x.py", False),
        ("accelerate launch --num_processes 2 x.py --cpu", False),
        ("torchrun --nproc_per_node 2 x.py", False),
        ("python x.py", False),
    ],
)
def test_several_processes_that_will_be_one_are_told(command: str, said: bool) -> None:
    """On processors accelerate starts one, whatever it is asked for."""
    assert bool(debugging.alone(ranks.read(command.split()))) is said


def test_asking_is_for_the_next_attempt_alone(run: RunDir) -> None:
    """And status says for which."""
    started = Event(kind="attempt", at=1.0, values={"notes": [debugging.NOTE]})
    plain = Event(kind="attempt", at=2.0, values={"notes": []})
    assert debugging.words(run, [plain], running=True) == ""
    debugging.ask(run)
    assert debugging.asked(run)
    assert debugging.words(run, [plain], running=True).startswith("the next attempt debugs its collectives")
    debugging.taken(run)
    assert not debugging.asked(run)
    assert debugging.words(run, [started], running=True).startswith("this attempt debugs its collectives")
    assert debugging.words(run, [started], running=False) == ""
    assert debugging.words(run, [started, plain], running=True) == ""


def test_whether_an_attempt_debugs_in_detail_is_known(run: RunDir) -> None:
    """Because somebody asked for it, or has set it."""
    assert not debugging.detailed(run, {"TORCH_DISTRIBUTED_DEBUG": "INFO"})
    assert debugging.detailed(run, {"TORCH_DISTRIBUTED_DEBUG": "detail"})
    values = {"attempt": "a", "number": 1, "start_step": 0, "log_from": 0}
    Ledger(run.ledger, FakeClock()).add("attempt", **values, notes=[debugging.NOTE])
    assert debugging.detailed(run, {})
    Ledger(run.ledger, FakeClock()).add("attempt", **values, notes=[])
    assert not debugging.detailed(run, {})
