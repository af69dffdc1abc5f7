"""Laws of the files in which a run keeps what it has learned."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat, limits
from fluxguard.errors import InputError
from fluxguard.heartbeat import Heart
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import order, remembering
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.learning import NOTHING, Chosen, Learned

ATTEMPT = Attempt(
    uuid="0b9f7c1e-0000-4000-8000-000000000001", number=1, start_step=0, log_from=0, at=0.0, keeper=None
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory whose heartbeats lie beside it."""
    made = RunDir(tmp_path / "out")
    made.create()
    (tmp_path / "beats").mkdir()
    write_json(made.run, {"beats": str(tmp_path / "beats")})
    return made


def beats(run: RunDir, rank: int, mark: bytes = ATTEMPT.mark, **longest: float) -> None:
    """Leave the last heartbeat of a rank."""
    heart = Heart(heartbeat.path_for(run.beats(), rank), rank=rank, attempt=mark)
    for name, seconds in longest.items():
        setattr(heart, name, seconds)
    heart.beat()


def test_every_rank_of_the_attempt_teaches(run: RunDir) -> None:
    """The longest of all; another attempt, and what is no heartbeat, teach nothing."""
    beats(run, 0, longest_batch=7.2)
    beats(run, 11, longest_batch=9.5, longest_read=2.0)
    beats(run, 2, mark=uuid.uuid4().bytes, longest_batch=50.0)
    (run.beats() / "beat.3").write_bytes(b"FGHB torn")
    (run.beats() / "beat.4").mkdir()
    (run.beats() / "beat.0.77").write_bytes(b"")
    assert remembering.of_attempt(run, ATTEMPT) == Learned(waits={"batch": 9.5, "read": 2.0})


def test_no_heartbeats_teach_nothing(tmp_path: Path) -> None:
    """A folder that is gone with the memory it was in."""
    run = RunDir(tmp_path)
    run.create()
    write_json(run.run, {"beats": str(tmp_path / "gone")})
    assert remembering.of_attempt(run, ATTEMPT) == NOTHING


def test_what_is_kept_is_read_again_and_holds_for_the_guard(run: RunDir) -> None:
    """And the guard's file is one that the guard can read."""
    known = Learned(waits={"batch": 9.5}, progress={"load": 500.0}, life={"load": 100.0})
    remembering.keep(run, Chosen(), known)
    assert remembering.learned(run) == known
    assert limits.read(run.limits) == Chosen().grown(known)
    assert limits.read(run.limits).wait.batch == 95.0


def test_an_older_guard_can_read_its_limits(run: RunDir) -> None:
    """It refuses a file that names a limit it does not know, so what is the default is not named."""
    remembering.tell_guard(run, Limits())
    assert json.loads(run.limits.read_bytes()) == {"version": 1}
    chosen = Limits.from_mapping({"wait": {"batch": 70}, "max_restarts": 2})
    remembering.tell_guard(run, chosen)
    assert set(json.loads(run.limits.read_bytes())) == {"version", "wait", "max_restarts"}
    assert limits.read(run.limits) == chosen


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"version": 99, "waits": {"batch": 50}}', b"{}",
        b'{"version": 1, "waits": {"batch": NaN, "read": 1e300, "block_swap": Infinity}, "life": "x"}',
        b"[" * 100_000, b'{"version": 1, "waits": [1], "progress": null, "life": {"step": {"a": 1}}}',
    ],
)  # fmt: skip
def test_a_broken_file_teaches_nothing(run: RunDir, data: bytes) -> None:
    """Whatever it holds, the limits are those that were chosen."""
    run.learned.write_bytes(data)
    assert remembering.learned(run) == NOTHING


def test_a_file_that_cannot_be_read_is_noted(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    """One line; none when there is no file."""
    assert remembering.learned(run) == NOTHING
    assert caplog.messages == []
    run.learned.write_bytes(b"torn")
    remembering.learned(run)
    assert len(caplog.messages) == 1
    assert str(run.learned) in caplog.messages[0]


def test_a_full_disk_costs_the_lesson_not_the_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remembering, "write_json", full)
    remembering.keep(run, Chosen(), Learned(waits={"batch": 9.5}))
    assert not run.learned.exists()


# Who chose which limit.


def given(tmp_path: Path, name: str, text: str, **more: Any) -> Chosen:
    """Return what a limits file chooses."""
    path = tmp_path / name
    path.write_text(text)
    return order.read_limits(path, **{"hardened": True, **more})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my.toml", '[wait]\nbatch = 60\n[phase."text cache"]\nceiling = 4000\n'),
        ("my.json", '{"version": 1, "wait": {"batch": 60}, "phase": {"text cache": {"ceiling": 4000}}}'),
    ],
)
def test_what_a_file_names_is_remembered(tmp_path: Path, name: str, text: str) -> None:
    """Also where it names what is the default anyway."""
    chosen = given(tmp_path, name, text, max_restarts=2)
    assert set(chosen.named) == {"wait.batch", "phase.text cache.ceiling", "max_restarts"}
    assert chosen.named["max_restarts"] == "--max-restarts"
    assert chosen.grown(Learned(waits={"batch": 50.0})).wait.batch == 60.0


def test_nothing_is_named_without_a_file() -> None:
    """Then every limit may grow."""
    assert order.read_limits(None, hardened=True) == Chosen()
    assert order.read_limits(None, hardened=False) == Chosen(Limits().doubled())


def test_the_job_says_who_chose(run: RunDir, tmp_path: Path) -> None:
    """A later `fluxguard limits` can tell, also of limits that were chosen with the value of the default."""
    chosen = given(tmp_path, "my.toml", "[wait]\nbatch = 60\n")
    write_json(run.job, {"hardened": True, **remembering.to_job(chosen)})
    assert remembering.chosen(run) == chosen
    said = {row.name: row.why for row in remembering.explained(run)}
    assert (said["wait.batch"], said["wait.read"]) == ("your limits file", "default")


def test_an_older_run_says_what_is_not_the_default(run: RunDir) -> None:
    """It was begun before it was written down who chose what."""
    write_json(run.job, {"hardened": False})
    doubled = Limits().doubled()
    write_json(run.limits, replace(doubled, wait=replace(doubled.wait, batch=77.0)).to_mapping())
    said = {row.name: row.why for row in remembering.explained(run)}
    assert said["wait.batch"] == "your limits file"
    assert said["phase.step.ceiling"] == "default, doubled: not hardened"


@pytest.mark.parametrize(
    "values",
    [{"limits": 7}, {"limits": {"naps": 1}}, {"limits": None, "limits_named": 3}, {"limits_named": {"x": []}}, {}],
)
def test_a_broken_job_still_has_limits(run: RunDir, values: dict[str, Any]) -> None:
    """The defaults."""
    write_json(run.job, {"hardened": True, **values})
    assert remembering.chosen(run).limits == Limits()


def test_without_a_run_there_are_no_limits_to_tell(tmp_path: Path) -> None:
    """One clear line."""
    with pytest.raises(InputError, match="holds no run of fluxguard"):
        remembering.explained(RunDir(tmp_path))


def test_limits_are_shown_as_json_can_hold_them(run: RunDir) -> None:
    """Each with its value, its unit and why."""
    write_json(run.job, {"hardened": True, **remembering.to_job(Chosen())})
    remembering.keep(run, Chosen(), Learned(waits={"batch": 7.2}))
    rows = {row.name: row.to_mapping() for row in remembering.explained(run)}
    batch = json.loads(json.dumps(rows, allow_nan=False))["wait.batch"]
    assert batch == {
        "value": 72.0, "unit": "s", "why": "learned: 10 x 7.2 s, the longest completed batch", "longest_s": 7.2,
    }  # fmt: skip
    assert [name for name, row in rows.items() if row["unit"] is None] == [
        "watch.step_factor", "save.share", "max_restarts", "max_kills", "max_bad_losses", "max_heals", "strict",
    ]  # fmt: skip
