"""Laws of the stacks that are taken before a kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.sensing.processes import NO_STACKS
from tests.conftest import FAULTS, Spawn

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="rights are taken away as Linux does it"),
]

COLLECT = Path(__file__).with_name("without_rights.py")
# PR_CAPBSET_DROP, CAP_SYS_PTRACE: gone for good once another program is executed. Who may not drop it has not got it.
DROP_PTRACE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def collected(spawn: Spawn, folder: Path, *words: str, rank: int = 0) -> dict[str, Any]:
    """Return what a supervisor that may not look into other processes collects of a fault program that hangs."""
    run = RunDir(folder)
    run.create()
    (folder / "beats").mkdir()
    write_json(run.run, {"beats": str(folder / "beats")})
    python = (sys.executable, "-c", DROP_PTRACE)
    collector = spawn(COLLECT, folder, FAULTS / words[0], *words[1:], python=python, env={"RANK": str(rank)})
    assert collector.ends() == 0, collector.output
    return dict(json.loads(collector.output.splitlines()[-1]))


@pytest.mark.parametrize(
    ("how", "where", "rank"), [("python", "stuck_in_python", 0), ("gil", "stuck_in_c", 0), ("gil", "stuck_in_c", 3)]
)
def test_stacks_are_seen_without_special_rights(spawn: Spawn, tmp_path: Path, how: str, where: str, rank: int) -> None:
    """The guard writes them when nobody may look into a trainer, also while C code holds the interpreter."""
    seen = collected(spawn, tmp_path, "unreadable.py", how, rank=rank)
    assert seen["outside"].startswith(NO_STACKS), "the rights were not taken away"
    assert f"in {where}" in seen["stacks"]
    assert "in stuck_beside" in seen["stacks"]
    assert "the same again" in seen["stacks"]
    assert seen["alive"]
    assert seen["took"] < WatchLimits().evidence


def test_a_worker_writes_its_own_stacks(spawn: Spawn, tmp_path: Path) -> None:
    """It was forked off the trainer, and each of the two is asked for its own."""
    seen = collected(spawn, tmp_path, "unreadable.py", "worker")
    assert "in stuck_in_python" in seen["stacks"]
    assert "in stuck_in_worker" not in seen["stacks"]
    (worker,) = seen["others"]
    assert "in stuck_in_worker" in worker
    assert "the same again" in worker
