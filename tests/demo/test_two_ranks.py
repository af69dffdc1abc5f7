"""The miniature on two processors: supervised, one rank stopped in the middle, and trained to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from fluxguard import heartbeat, manifest
from fluxguard.drill import workshop
from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger
from fluxguard.supervisor.showing import status
from tests.conftest import Spawn, Spawned

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX")]

LONGEST = 180.0
STEPS, LATE, SAVED = 6, 4, 3
LIMIT = 2.0
_OTHERWISE = {
    "commands.launch": "commands.launch --multi_gpu --num_processes 2 --main_process_port 0",
    "--persistent_data_loader_workers": "",
    "--max_data_loader_n_workers 2": "--max_data_loader_n_workers 0",
}
"""With --cpu accelerate starts one process, whatever is said of their number; a free port, and no loader workers."""


def prepared(folder: Path) -> RunDir:
    """Return the run of a miniature that six steps of two ranks train, and that saves a state in the middle."""
    shop = workshop.prepare(folder, epochs=1, flags=("--save_every_n_steps", str(SAVED)))
    text = shop.train_sh.read_text("utf-8")
    for old, new in _OTHERWISE.items():
        assert old in text
        text = text.replace(old, new)
    shop.train_sh.write_text(text, "utf-8")
    limits = json.loads(shop.limits.read_text("utf-8"))
    limits["wait"]["barrier"] = LIMIT
    shop.limits.write_text(json.dumps(limits), "utf-8")
    return RunDir(shop.output_dir)


def stop_when_late(run: RunDir, rank: int, spawned: Spawned) -> None:
    """Stop a rank for good as soon as it has made its last step but two."""

    def stopped() -> bool:
        with contextlib.suppress(OSError):
            beat = heartbeat.read(heartbeat.path_for(run.beats(), rank))
            if beat is not None and beat.step >= LATE:
                os.kill(beat.pid, signal.SIGSTOP)
                return True
        return False

    spawned.when(stopped, LONGEST)


@pytest.mark.timeout(LONGEST)
def test_a_rank_that_is_stopped_is_named_and_the_run_resumes_exactly(tmp_path: Path, spawn: Spawn) -> None:
    """The others wait no longer than they may; each planned step is trained once, and the state knows of both."""
    run = prepared(tmp_path)
    supervisor = spawn(
        "-m", "fluxguard", "supervise", "--limits", tmp_path / "limits.json", run.output_dir / "train.sh"
    )
    stop_when_late(run, 1, supervisor)
    assert supervisor.ends(LONGEST) == 0, supervisor.output
    seen = status.read(run)
    assert seen is not None
    assert (seen.state, seen.planned_steps, seen.applied_steps, seen.attempts) == ("finished", STEPS, STEPS, 2)
    (incident,) = seen.incidents
    assert incident["words"].startswith("Rank 1 did not come to #")
    assert "it is stopped, in step 5" in incident["words"]
    assert incident["detected_after_s"] < LIMIT + 5
    assert (incident["step"], incident["resumed_step"]) == (LATE, SAVED)
    starts = [event.values for event in ledger.read(run.ledger) if event.kind == "attempt"]
    assert [start["start_step"] for start in starts] == [0, SAVED]
    known = manifest.read(Path(starts[1]["state"]))
    assert known is not None
    assert (known.true_step, known.world_size) == (SAVED, 2)
