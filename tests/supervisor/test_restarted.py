"""Laws of rounds that an agent ends by itself: nothing is done about one, and why it ended stays known."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.launch import ranks
from fluxguard.supervisor import restarted
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.trainee import Trainee

ATTEMPT = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=0.0, keeper=None)
SAYS = (
    "E1121 22:18:52.937000 24142 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})"
    " local_rank: {rank} (pid: {pid}) of binary: /env/bin/python"
)
RAISED = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/workspace/train.py", line 13, in <module>',
    "[rank0]: fluxguard.errors.RanksDisagree: the ranks have come to different places: rank 0 is at #4 barrier 'a'",
)


def says(code: int, rank: int, pid: int) -> str:
    """Return what the agent says of the rank by which a round ended."""
    return SAYS.format(code=code, rank=rank, pid=pid)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path / "ledger.jsonl", FakeClock())


@pytest.fixture
def trainee(tmp_path: Path) -> Trainee:
    """A trainer whose agent starts its ranks again, twice at most."""
    argv = ("torchrun", "--standalone", "--max-restarts", "2", "train.py")
    return Trainee(
        argv=argv,
        resumed=lambda _start, _plan: (),
        masked=tuple,
        secrets=frozenset({"hf_secret"}),
        cwd=tmp_path,
        env={},
        weights=None,
        hardened=False,
        accumulation=1,
        own_cadence=False,
        ranks=ranks.read(argv),
        foreign=True,
    )


def test_the_agents_words_tell_which_rank_ended_and_how() -> None:
    """Each with the output of its own round."""
    found = restarted.failures(["one", says(-9, 1, 11), "two", says(1, 0, 20)])
    assert [(one.local_rank, one.pid, one.exit, one.lines) for one in found] == [
        (1, 11, Exit(signal=9), ("one",)),
        (0, 20, Exit(code=1), ("two",)),
    ]
    assert restarted.failures(["failed (exitcode: 1)", "step 3/10"]) == []


def test_a_round_that_ended_by_itself_leaves_its_cause(ledger: Ledger, trainee: Trainee) -> None:
    """Once, however often the same lines are looked at: which rank, how, and why."""
    lines = [says(-9, 1, 11), *RAISED, says(1, 0, 20)]
    for _ in range(2):
        restarted.note(ledger, ATTEMPT, lines, trainee, but=(), phase="step", step=7)
    killed, raised = (event.values for event in ledger.events)
    assert killed["words"].startswith("rank 1 ended by SIGKILL, and its agent started the ranks again: ")
    assert (killed["kind"], killed["step"]) == ("round 1 ended", 7)
    assert raised["words"].startswith("rank 0 ended with exit code 1, and its agent started the ranks again: The ranks")
    assert "rank 0 is at #4 barrier 'a'" in raised["words"]
    assert restarted.words(ledger.events)[1].startswith("round 2 ended at step 7: rank 0 ended with exit code 1")


def test_what_no_agent_starts_again_is_no_round_that_went_on(ledger: Ledger, trainee: Trainee) -> None:
    """What we ended has an incident; what comes behind the last restart ends the attempt."""
    lines = [says(-9, 1, 10), says(-9, 1, 11), says(-9, 1, 12), says(-9, 1, 13)]
    restarted.note(ledger, ATTEMPT, lines, trainee, but={10}, phase="step", step=7)
    assert [event.values["pid"] for event in ledger.events] == [11, 12]


def test_what_a_rank_said_is_told_without_secrets(ledger: Ledger, trainee: Trainee) -> None:
    """As everything that is written."""
    lines = [*RAISED[:2], "[rank0]: ValueError: no hf_secret here", says(1, 0, 20)]
    restarted.note(ledger, ATTEMPT, lines, trainee, but=(), phase="step", step=7)
    assert "ValueError: no " in str(ledger.events[0].values["words"])
    assert "hf_secret" not in str(ledger.events)
