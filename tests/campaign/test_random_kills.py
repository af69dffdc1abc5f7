"""Many random kills of a training. `make kills` kills 20 times in every way to save; the tests do it twice."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest

from fluxguard import heartbeat, manifest
from fluxguard.drill import drill, workshop
from fluxguard.errors import StateUnusable
from fluxguard.launch import trainsh
from fluxguard.launch.script import Script
from fluxguard.launch.trainer import script_index
from fluxguard.rundir import RunDir
from fluxguard.supervisor.showing import status
from tests.campaign.field import Field

KILLS = int(os.environ.get("CAMPAIGN_KILLS", "2"))
SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
OUTER = 120.0 + 25.0 * KILLS

EPOCH_STATES = ("--save_every_n_steps", "100000")
STEP_STATES = ("--save_every_n_epochs", "100000", "--save_every_n_steps", "2")
BOTH = ("--save_every_n_steps", "2")
WAYS = {"epoch states": EPOCH_STATES, "step states": STEP_STATES, "both": BOTH}
EVERY_WAY = [(accumulation, way) for accumulation in (1, 2, 4, 5) for way in WAYS]
"""Five batches to a step leave two over in an epoch of twelve."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, field: Field) -> Path:
    """Where the trainings are: they share one data set with its caches, and one hardened trainer."""
    made: Path = tmp_path_factory.mktemp("kills")
    for name in ("images", "sd-scripts"):
        shutil.copytree(field.template / name, made / name, symlinks=True)
    return made


@pytest.fixture(scope="module")
def undisturbed(folder: Path, plainly: Callable[[workshop.Workshop], None]) -> Callable[[int], Path]:
    """Give what a training leaves that nobody hardened or killed, by its batches to a step."""

    @cache
    def trained(accumulation: int) -> Path:
        name = f"undisturbed-{accumulation}"
        plainly(workshop.prepare(folder, hardened=False, name=name, flags=accumulated(accumulation)))
        return folder / name

    return trained


def accumulated(accumulation: int) -> tuple[str, ...]:
    """The flag for some batches to a step."""
    return ("--gradient_accumulation_steps", str(accumulation))


def applied(state: Path) -> set[int]:
    """Return how often the optimizer was applied to each of the weights, by its own count in a state."""
    import torch

    saved = torch.load(state / "optimizer.bin", weights_only=False)
    return {int(of_one["step"]) for of_one in saved["state"].values()}


def newest(output_dir: Path) -> Path | None:
    """Return the state that verifies and holds the most steps."""
    found: dict[int, Path] = {}
    for state in output_dir.glob("*-state"):
        with contextlib.suppress(StateUnusable):
            found[manifest.verify(state).true_step] = state
    return found[max(found)] if found else None


@contextlib.contextmanager
def trainer(script: Script, resume: Path | None, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a trainer without its launcher; whatever is left of it at the end is killed."""
    index = script_index(script.argv)
    assert index is not None
    flow = ["--resume", str(resume)] if resume else []
    with log.open("wb") as file:
        argv = [sys.executable, *script.argv[index:], *flow]
        env = {**os.environ, **script.env, "OMP_NUM_THREADS": "1"}  # as the launcher does
        process = subprocess.Popen(argv, cwd=script.cwd, env=env, stdout=file, stderr=file)
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.wait()


def live_until_killed(script: Script, resume: Path | None, log: Path, seconds: float | None) -> int | None:
    """Let a trainer live until `seconds` after its first step (for ever when None); return its exit code, if any."""
    with trainer(script, resume, log) as process:
        deadline = time.monotonic() + OUTER
        while process.poll() is None and time.monotonic() < deadline:
            if seconds is not None and b"avr_loss" in log.read_bytes():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(seconds)
                return None
            time.sleep(0.02)
        return process.poll()


@pytest.mark.integration
@pytest.mark.timeout(OUTER + 240)
@pytest.mark.skipif("CAMPAIGN_KILLS" not in os.environ, reason="minutes: make kills does it")
@pytest.mark.parametrize(("accumulation", "way"), EVERY_WAY)
def test_each_planned_step_is_applied_once(
    folder: Path, undisturbed: Callable[[int], Path], accumulation: int, way: str
) -> None:
    """However a training saves and accumulates, and whenever it is killed: the same steps, and the same bits."""
    reference = undisturbed(accumulation)
    name = f"killed-{accumulation}-{way.replace(' ', '-')}"
    made = workshop.prepare(folder, name=name, flags=(*accumulated(accumulation), *WAYS[way]))
    script = trainsh.parse(made.train_sh, os.environ)
    chance = random.Random(SEED)
    # About a state's distance on average, so that some lives gain nothing and some much.
    longest = 1.6 if way == "epoch states" else 0.7
    kills, code, life = 0, None, 0
    while code is None:
        seconds = chance.uniform(0.0, longest) if kills < KILLS else None
        life += 1
        log = made.output_dir / f"life-{life}.log"
        code = live_until_killed(script, newest(made.output_dir), log, seconds)
        assert code in (None, 0), log.read_text(errors="replace")
        kills += code is None
    assert kills > 0
    planned = workshop.EPOCHS * -(-workshop.IMAGES // accumulation)
    final = made.output_dir / f"{name}-state"
    assert applied(final) == applied(reference / f"{reference.name}-state") == {planned}
    assert manifest.verify(final).true_step == planned
    assert drill.tensors(made.output_dir / f"{name}.safetensors") == drill.tensors(
        reference / f"{reference.name}.safetensors"
    )


def kill_at_random(made: workshop.Workshop, supervisor: subprocess.Popen[bytes], chance: random.Random) -> int:
    """Kill the trainer at random moments of its training, KILLS times at most; return how often it was."""
    beats, kills = heartbeat.path_for(RunDir(made.output_dir).beats(), 0), 0
    last = b""
    deadline = time.monotonic() + OUTER
    while kills < KILLS and supervisor.poll() is None and time.monotonic() < deadline:
        beat = heartbeat.read(beats)
        if beat is None or beat.attempt == last or beat.phase not in ("step", "saving"):
            time.sleep(0.02)
            continue
        last = beat.attempt
        # About a state's distance on average, so that some attempts gain nothing and some much.
        time.sleep(chance.uniform(0.0, 0.7))
        try:
            psutil.Process(beat.pid).kill()
        except psutil.Error:
            continue
        kills += 1
    return kills


@pytest.mark.integration
@pytest.mark.timeout(OUTER + 240)
def test_random_kills_of_a_supervised_training_leave_no_trace(folder: Path, undisturbed: Callable[[int], Path]) -> None:
    """Whenever the trainer is killed, each planned step is embodied exactly once, bit for bit."""
    reference = undisturbed(1)
    made = workshop.prepare(folder, name="killed")
    RunDir(made.output_dir).create()
    RunDir(made.output_dir).open_beats()
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "fluxguard", "supervise", str(made.train_sh), "--limits", str(made.limits)],
        stdout=subprocess.DEVNULL,
    )
    try:
        kills = kill_at_random(made, supervisor, random.Random(SEED))
        assert supervisor.wait(OUTER) == 0
    finally:
        supervisor.kill()
        supervisor.wait()
    seen = status.read(RunDir(made.output_dir))
    assert seen is not None
    assert (seen.state, seen.applied_steps, len(seen.incidents)) == ("finished", workshop.STEPS, kills)
    assert kills > 0
    assert drill.tensors(folder / "killed" / "killed.safetensors") == drill.tensors(
        reference / f"{reference.name}.safetensors"
    )
