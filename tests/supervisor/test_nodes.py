"""Laws of several machines on one folder: each has its own run there, and none takes another one for a rival."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fluxguard.cli import app, options, rendering
from fluxguard.clock import FakeClock, SystemClock
from fluxguard.errors import InputError
from fluxguard.guard import pulse
from fluxguard.rundir import ATTEMPT_VARIABLE, RUN_VARIABLE, RunDir, is_node, read_json, write_json
from fluxguard.supervisor import finish, foreign, nodes, ownership, resuming, rivals, settling, stopping
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.finish import Finish
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.order import Order
from fluxguard.supervisor.ownership import owned
from fluxguard.supervisor.showing import snapshot, status

ATTEMPT = Attempt(uuid="0b9f7c1e-0000-4000-8000-000000000001", number=1, start_step=0, log_from=0, at=0.0, keeper=None)
TWO = "torchrun --nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=gpu1:29400 --max-restarts=3 train.py"


def node(folder: Path, name: str, *, reason: str = "", kind: str = "stopped") -> RunDir:
    """Return the run of a machine, begun, and over when a reason is given."""
    run = RunDir(folder, name)
    run.create()
    ledger = Ledger(run.ledger, SystemClock())
    ledger.add("job", hardened=False, weights="", foreign=True)
    if reason:
        ledger.add(kind, attempt="", reason=reason, applied_steps=7, weights="", size=None)
    return run


def order(folder: Path, command: str = TWO) -> Order:
    """Take a command."""
    return foreign.order(
        command.split(), output_dir=folder / "out", weights=Path("w.safetensors"), cwd=folder, python=sys.executable,
        exports={},
    )  # fmt: skip


# Where the files of a machine lie.


@pytest.mark.parametrize("name", ["gpu1", "gpu-1.local", "10.0.0.1", "A", "x" * 63])
def test_the_files_of_a_machine_are_found_by_their_place(tmp_path: Path, name: str) -> None:
    """As the environment of a rank names it."""
    run = RunDir(tmp_path, name)
    assert run.root == tmp_path / ".fluxguard" / "nodes" / name
    again = RunDir.of_root(str(run.root))
    assert (again.output_dir, again.node, again.root) == (tmp_path, name, run.root)
    assert RunDir.of_root(RunDir(tmp_path).root).node == ""


@pytest.mark.parametrize("name", ["..", ".", "a/b", "-x", "", "a b", "x" * 64, "gpu1\n", "C:"])
def test_a_name_that_leads_elsewhere_is_no_name(tmp_path: Path, name: str) -> None:
    """It becomes a folder."""
    assert not is_node(name)
    if name:
        with pytest.raises(ValueError, match="no name of a machine"):
            RunDir(tmp_path, name)


def test_the_guard_writes_where_its_machine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last words of rank 0 and of rank 4 of two machines may have the same name elsewhere."""
    run = RunDir(tmp_path, "gpu1")
    monkeypatch.setenv(RUN_VARIABLE, str(run.root))
    found = pulse.run_dir()
    assert found is not None
    assert found.last_words(0) == run.last_words(0)


def test_each_machine_has_heartbeats_of_its_own(tmp_path: Path) -> None:
    """Also where one machine plays several."""
    folders = {RunDir(tmp_path, name).beats() for name in ("a", "b")} | {RunDir(tmp_path).beats()}
    assert len(folders) == 3


# Which machine a command is for.


def test_a_command_of_several_machines_is_that_of_this_host(tmp_path: Path) -> None:
    """Or of the one that is named; of one machine it is nobody's."""
    made = order(tmp_path)
    assert made.on(None).run.node == socket.gethostname()
    assert made.on("gpu7").run.root.name == "gpu7"
    alone = order(tmp_path, "torchrun --standalone --max-restarts=3 train.py")
    assert alone.on(None) is alone
    assert (made.trainee.elastic, made.trainee.several, made.trainee.goes_on) == (True, True, True)
    assert (alone.trainee.elastic, alone.trainee.several, alone.trainee.goes_on) == (True, False, True)
    assert not order(tmp_path, "python train.py").trainee.goes_on


def test_a_machine_cannot_be_named_for_a_trainer_whose_states_lie_on_one(tmp_path: Path) -> None:
    """Nor by what is no name."""
    made = order(tmp_path)
    with pytest.raises(InputError, match="--node"):
        made.on("../x")
    with pytest.raises(InputError, match="--node"):
        replace(made, trainee=replace(made.trainee, foreign=False)).on("gpu1")


def test_the_agent_gets_a_store_for_each_round_unless_the_user_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared one makes the ranks of the next round hang."""
    assert order(tmp_path).trainee.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")
    assert order(tmp_path).trainee.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "0"


# Owners and rivals.


def test_two_machines_own_their_runs_at_the_same_time(tmp_path: Path) -> None:
    """Each its own; one machine still has one owner."""
    one, other = node(tmp_path, "a"), node(tmp_path, "b")
    with owned(one), owned(other):
        assert ownership.owner(one) is not None
        with pytest.raises(Exception, match="already"), owned(RunDir(tmp_path, "a")):
            pass


def test_ranks_of_another_machine_are_no_rivals(tmp_path: Path) -> None:
    """Ranks of this one that nobody knows are."""
    script = tmp_path / "flux_train_network.py"
    script.write_text("import time; time.sleep(60)")
    run = node(tmp_path, "a")
    argv = [sys.executable, str(script), "--output_dir", str(tmp_path), "--output_name", "x"]
    for name, found in (("b", False), ("a", True)):
        env = {**os.environ, RUN_VARIABLE: str(RunDir(tmp_path, name).root), ATTEMPT_VARIABLE: ATTEMPT.uuid}
        process = subprocess.Popen(argv, env=env, cwd=tmp_path)
        try:
            until = time.monotonic() + 10
            while str(script).encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                assert time.monotonic() < until
            assert (rivals.find(run, known=()) is not None) is found
        finally:
            process.kill()
            process.wait()


def test_a_fresh_run_of_one_machine_moves_nothing_that_another_saves_now(tmp_path: Path) -> None:
    """Its own records only; without another one all outputs, as ever."""
    run, other = node(tmp_path, "a"), node(tmp_path, "b")
    (tmp_path / "x.safetensors").write_text("weights")
    with owned(other):
        aside = settling.start_fresh(run)
        assert aside is not None
        assert (aside / ".fluxguard" / "nodes" / "a" / "ledger.jsonl").exists()
        assert (tmp_path / "x.safetensors").exists()
        assert other.ledger.exists()
    settling.start_fresh(node(tmp_path, "c"))
    assert not (tmp_path / "x.safetensors").exists()


# How a machine is finished.


def elsewhere(folder: Path, ranks: list[int]) -> bool:
    return finish.saved_elsewhere(order(folder).trainee, ranks)


def test_weights_are_looked_for_where_rank_0_trained(tmp_path: Path) -> None:
    """Another machine is finished by its exit code; without heartbeats by what lies there."""
    (tmp_path / "out").mkdir()
    assert elsewhere(tmp_path, [2, 3])
    assert not elsewhere(tmp_path, [0, 1])
    assert elsewhere(tmp_path, [])
    (tmp_path / "out" / "w.safetensors").write_text("x")
    assert not elsewhere(tmp_path, [])
    assert not finish.saved_elsewhere(order(tmp_path, "python train.py").trainee, [2])
    found = finish.judge(order(tmp_path).trainee, Plan(), ATTEMPT, 7, elsewhere=True)
    assert isinstance(found, Finish)
    assert (found.reason, found.weights) == (finish.ELSEWHERE, "")


def test_a_run_that_another_machine_has_finished_is_not_started_again(tmp_path: Path) -> None:
    """Only when it finished since this one began."""
    run = node(tmp_path, "a")
    node(tmp_path, "b", reason="finished and verified", kind="finished")
    assert nodes.finished(run, since=time.time() - 60) == "b"
    assert nodes.finished(run, since=time.time() + 60) == ""
    assert nodes.finished(RunDir(tmp_path), since=0.0) == ""


# What is shown of them.


def test_status_lists_every_machine(tmp_path: Path) -> None:
    """Or the one that is asked for; one that is stopped is the exit code."""
    node(tmp_path, "a", reason="finished", kind="finished")
    node(tmp_path, "b", reason="the rendezvous is gone")
    done = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert done.exit_code == 1
    assert "a: finished" in done.output
    assert "b: stopped" in done.output
    assert "the rendezvous is gone" in done.output
    said: dict[str, Any] = json.loads(CliRunner().invoke(app, ["status", str(tmp_path), "--json"]).output)
    assert {name: one["state"] for name, one in said["nodes"].items()} == {"a": "finished", "b": "stopped"}
    one = CliRunner().invoke(app, ["status", str(tmp_path), "--node", "a", "--json"])
    assert (one.exit_code, json.loads(one.output)["node"]) == (0, "a")


def test_status_of_several_machines_tells_of_their_ranks(tmp_path: Path) -> None:
    """Which rank stands still there, and what the training goes on in spite of."""
    read = status.read(node(tmp_path, "b", reason="stopped on request"))
    assert read is not None
    seen = replace(read, ranks="rank 1 is stopped, in step 6 since 70 s", troubles=["rank 1 ended by SIGKILL"])
    said = list(rendering.nodes([seen.to_mapping()]))
    assert said[-2:] == ["  ranks: rank 1 is stopped, in step 6 since 70 s", "  note: rank 1 ended by SIGKILL"]


def test_a_machine_that_supervises_elsewhere_is_said_to_run_there(tmp_path: Path) -> None:
    """Its processes cannot be seen from here; its signs can."""
    run = node(tmp_path, "b")
    Ledger(run.ledger, SystemClock()).add(
        "attempt", attempt=ATTEMPT.uuid, number=1, start_step=0, log_from=0, argv=[], state=None
    )
    write_json(run.owner, {"pid": 4711, "started": 1.0, "boot": "another", "host": "far-away"})
    seen = status.read(run)
    assert seen is not None
    assert (seen.state, seen.watched, seen.node, seen.host) == ("running", True, "b", "far-away")


def test_one_machine_is_meant_where_one_is_needed(tmp_path: Path) -> None:
    """The only one, this host, or the one that is named."""
    node(tmp_path, "b")
    assert options.one_run(tmp_path, None).node == "b"
    node(tmp_path, "c")
    with pytest.raises(InputError, match="b, c; name one with --node"):
        options.one_run(tmp_path, None)
    assert options.one_run(tmp_path, "c").node == "c"
    with pytest.raises(InputError, match=r"--node: d has no run.*there: b, c"):
        options.one_run(tmp_path, "d")
    node(tmp_path, socket.gethostname())
    assert options.one_run(tmp_path, None).node == socket.gethostname()
    assert options.one_run(tmp_path / "empty", None).node == ""


def test_watch_shows_every_machine_of_a_folder(tmp_path: Path) -> None:
    """Each by its name."""
    for name in ("a", "b"):
        node(tmp_path / "run", name, reason="finished", kind="finished")
    for folder in (tmp_path, tmp_path / "run"):
        seen = [snapshot.read(run, FakeClock()) for run in snapshot.runs_in(folder)]
        assert [one.name for one in seen if one is not None] == ["run/a", "run/b"]


# Stopping and going on.


def test_stop_stops_every_machine_and_says_what_each_did(tmp_path: Path) -> None:
    """One that fails keeps no other from being stopped."""
    runs = [node(tmp_path, "a"), node(tmp_path, "b", reason="finished", kind="finished"), RunDir(tmp_path, "none")]
    said = stopping.stop_all(runs, SystemClock())
    assert [run.node for run, _ in said] == ["a", "b", "none"]
    assert "stopped on request" in str(said[0][1])
    assert said[1][1] == "finished"
    assert isinstance(said[2][1], InputError)


def test_a_supervisor_elsewhere_is_asked_through_the_folder(tmp_path: Path) -> None:
    """It answers in its ledger; one that does not is said."""
    run = node(tmp_path, "b")
    write_json(run.owner, {"pid": 4711, "started": 1.0, "boot": "another", "host": "far-away"})

    class Answering(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if run.stop.exists():
                run.stop.unlink()
                Ledger(run.ledger, SystemClock()).add("stopped", reason="stopped on request there", applied_steps=0)

    assert stopping.stop(run, Answering()) == "stopped on request there"
    with pytest.raises(InputError, match="did not stop it in time"):
        stopping.stop(run, FakeClock())


def test_a_machine_takes_up_its_own_run_only(tmp_path: Path) -> None:
    """What trained on another one is taken up there."""
    mine, other = node(tmp_path / "run", "a"), node(tmp_path / "run", "b")
    write_json(mine.job, {"host": socket.gethostname()})
    write_json(other.job, {"host": "far-away"})
    found = {one.run.node: (one.kind, one.words) for one in resuming.find(tmp_path)}
    assert found["a"][0] == resuming.INTERRUPTED
    assert found["b"] == (resuming.ANOTHER, "trains on far-away: it is taken up again there")


# The verb that writes the lines.


def test_the_lines_of_all_machines_are_written(tmp_path: Path) -> None:
    """From a command, or from the run in the folder."""
    words = ["nodes", "--on", "gpu1,gpu2", "--output-dir", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--", "python", "train.py"])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0::2] == ["# on gpu1", "# on gpu2"]
    assert all(line.startswith("fluxguard supervise --node gpu") for line in lines[1::2])
    more = CliRunner().invoke(app, [*words, "--python", "venv", "--weights", "w.safetensors", "--", "train.py"])
    assert all(" --python venv --weights w.safetensors -- " in line for line in more.output.splitlines()[1::2])
    run = node(tmp_path, "gpu1")
    write_json(run.job, {"argv": TWO.split()})
    again = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(again.output)["gpu2"]["argv"][-1] == "train.py"
    assert read_json(run.job) is not None


def test_the_lines_hold_no_secret(tmp_path: Path) -> None:
    """They are what is pasted somewhere; that one is missing is said beside them."""
    token = "0123456789abcdef0123456789abcdef01234567"
    words = ["nodes", "--on", "gpu1", "--output-dir", str(tmp_path), "--", "train.py", "--wandb_api_key", token]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert token not in done.output
    assert "***" in done.output


@pytest.mark.parametrize("words", [["--on", "a b"], ["--on", ""], ["--on", "gpu1,gpu2"]])
def test_what_cannot_be_written_is_said(tmp_path: Path, words: list[str]) -> None:
    """A name that is none, no name at all, no command."""
    done = CliRunner().invoke(app, ["nodes", *words, "--output-dir", str(tmp_path)])
    assert isinstance(done.exception, InputError)
