"""Laws of the check before a training: wrong sums are said, the slowest is named, a wrong start says what to do."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner

from fluxguard import cli
from fluxguard.cli import doctor as verb
from fluxguard.distributed.checks import figures
from fluxguard.distributed.checks.figures import Report, Row
from fluxguard.errors import InputError
from tests.conftest import FAULTS, Spawn

DOCTOR = FAULTS / "distributed" / "doctor.py"


def row(rank: int, **known: object) -> Row:
    given = {"host": "node-a", "device": "GPU 0", "link": 1e9, "latency": 1e-4, "compute": 1e12, **known}
    return Row(rank=rank, **given)  # type: ignore[arg-type]


def report(*rows: Row) -> Report:
    return Report(rows=rows, backend="nccl", bandwidth=1e9)


@pytest.mark.parametrize("size", range(9))
def test_no_rank_is_in_two_pairs_at_once_and_every_one_meets_its_neighbours(size: int) -> None:
    """Whatever their number."""
    rounds = figures.rounds(size)
    for pairs in rounds:
        met = [rank for pair in pairs for rank in pair]
        assert len(met) == len(set(met))
    neighbours = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(neighbours) == len(set(neighbours))
    assert set(neighbours) == ({frozenset((rank, (rank + 1) % size)) for rank in range(size)} if size > 1 else set())


def test_the_slowest_rank_is_named_with_what_is_slow_about_it() -> None:
    """By its links or by its computing, whichever is worse."""
    links = report(row(0), row(1), row(2, link=2.5e8, host="node-b"))
    assert links.words() == [
        "Slowest is rank 2 on node-b: 4.00 times slower than the median at its links; every step waits for it."
    ]
    found = report(row(0, link=9e8), row(1, compute=5e11), row(2)).slowest
    assert found is not None
    assert (found[0].rank, found[1]) == (1, "computing")
    assert "which is usual" in report(row(0), row(1), row(2, link=0.95e9)).words()[0]
    assert "which is usual" in report(row(0), row(1, link=1e8)).words()[0], "two ranks share their link"
    assert report(row(0)).slowest is None


def test_wrong_sums_are_a_bad_answer() -> None:
    """And named first."""
    bad = report(row(0), row(1, correct=False))
    assert not bad.good
    assert "WRONG sums on rank 1" in bad.words()[0]
    assert report(row(0), row(1)).good


def test_clocks_that_are_apart_are_said() -> None:
    """Only where the measurement is sure of it."""
    assert any("2.5 s behind" in one for one in report(row(0), row(1, clock=-2.5)).words())
    assert len(report(row(0), row(1, clock=2.5, clock_error=2.0)).words()) == 1


def test_the_quickest_answer_tells_the_difference_of_two_clocks_best() -> None:
    """Ours is 5 s ahead; slow answers may be off by half their time."""
    samples = [(105.0, 100.3, 106.0), (110.0, 105.001, 110.002), (120.0, 116.0, 122.0)]
    ahead, error = figures.offset(samples)
    assert ahead == pytest.approx(5.0)
    assert error == pytest.approx(0.001)


def test_figures_go_through_text_that_fits_a_meeting() -> None:
    """In few digits; nothing that was not measured becomes a number."""
    one = row(3, host="a" * 200, link=None, clock=1 / 3)
    text = one.to_text()
    assert len(text) < 1024
    assert Row.from_text(text) == row(3, host="a" * 200, link=None, clock=0.3333)


def test_the_report_becomes_json() -> None:
    """With plain values."""
    values = json.loads(json.dumps(report(row(0), row(1, compute=5e11)).to_mapping()))
    assert values["slowest"]["rank"] == 1
    assert [one["rank"] for one in values["ranks"]] == [0, 1]


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--distributed"]])
def test_a_start_without_ranks_says_the_line_to_use(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of input, exit code 2."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    found = CliRunner().invoke(cli.app, words)
    assert isinstance(found.exception, InputError)
    assert verb.LINE in str(found.exception)


def test_a_python_without_torch_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else is tried."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = CliRunner().invoke(cli.app, ["doctor", "--distributed"])
    assert isinstance(found.exception, InputError)
    assert "needs torch" in str(found.exception)


@pytest.mark.integration
def test_two_ranks_are_measured_and_rank_0_alone_prints(spawn: Spawn) -> None:
    """Right sums, a figure of each rank for everything, and one answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        spawn(DOCTOR, "--json", torch=True, env={**known, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    assert [rank.ends() for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    assert ranks[1].output == ""
    values = json.loads(ranks[0].output)
    assert values["good"]
    assert values["backend"] == "gloo"
    assert [one["rank"] for one in values["ranks"]] == [0, 1]
    for one in values["ranks"]:
        assert min(one["link"], one["latency"], one["compute"]) > 0
        assert abs(one["clock"]) <= 1.0
    assert values["slowest"]["rank"] in (0, 1)


@pytest.mark.integration
def test_a_wrong_start_of_the_check_is_one_line_and_a_bad_answer(spawn: Spawn) -> None:
    """No stack."""
    known = {"WORLD_SIZE": "2", "RANK": "2", "MASTER_PORT": "1"}
    rank = spawn(DOCTOR, torch=True, env=known)
    assert rank.ends() == 1
    assert "RANK: is 2, but WORLD_SIZE is 2" in rank.output
    assert "Traceback" not in rank.output
