"""Laws of what is read from a checkout before anything starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.launch.command import Refusal, StartPoint
from fluxguard.launch.flags import Flags
from fluxguard.launch.trainer import Trainer
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir
from fluxguard.supervisor import order as orders
from fluxguard.supervisor.checkpoints import states
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.learning import Chosen
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.supervise import Supervision
from fluxguard.supervisor.trainee import Trainee
from tests.supervisor.test_states import state


@pytest.mark.parametrize(
    ("script", "library", "most"),
    [
        ("flux_train_network.py", "parser.add_argument('--blocks_to_swap')", 35),
        ("flux_train_network.py", "an older one", 0),
        ("sdxl_train_network.py", "parser.add_argument('--blocks_to_swap')", 0),
    ],
)
def test_blocks_are_swapped_only_by_a_trainer_that_can(tmp_path: Path, script: str, library: str, most: int) -> None:
    """The bound is that of FLUX; a checkout from before it, or for another model, swaps none."""
    (tmp_path / "library").mkdir()
    (tmp_path / script).write_text("import library")
    (tmp_path / "library" / "flux_train_utils.py").write_text(library)
    path = tmp_path / script
    trainer = Trainer(argv=("python", script), index=1, script=path, cwd=tmp_path, launcher="python")
    assert orders._most_swapped(trainer) == most


@pytest.mark.parametrize(("every", "steps"), [(60.0, "30"), (600.0, "300"), (None, None)])
def test_a_trainer_that_is_not_hardened_saves_as_often_as_the_limits_of_the_run_say(
    tmp_path: Path, every: float | None, steps: str | None
) -> None:
    """Told in steps, by how long one takes; nothing else of the command differs."""
    path = tmp_path / "flux_train_network.py"
    path.write_text("# knows --initial_step")
    argv = ("python", str(path), "--output_dir", "out", "--output_name", "x", "--save_state", "--max_train_epochs", "4")
    trainer = Trainer(argv=argv, index=1, script=path, cwd=tmp_path, launcher="python")
    trainee = orders._trainee(trainer, Flags.of(trainer), Path(sys.executable), {}, hardened=False)
    start = StartPoint(state=tmp_path / "s", true_step=5, epoch=1, at_epoch_end=False)
    plan = Plan(batches_per_epoch=1000, step_seconds=2.0, save_every=every)
    words = trainee.resumed(start, plan)
    assert not isinstance(words, Refusal)
    assert (words[words.index("--save_every_n_steps") + 1] if "--save_every_n_steps" in words else None) == steps


def test_the_limits_of_a_run_reach_the_command_of_its_attempts(tmp_path: Path) -> None:
    """Those of the user's file too."""
    asked = []

    def resumed(_: StartPoint, plan: Plan) -> tuple[str, ...]:
        asked.append(plan.save_every)
        return ("python",)

    run = RunDir(tmp_path)
    run.create()
    state(run, "x", 1, 4)
    states.seal(run, Plan(batches_per_epoch=10), since=0)
    trainee = Trainee(
        argv=("python",), resumed=resumed, masked=lambda words: words, secrets=frozenset(), cwd=tmp_path, env={},
        weights=None, hardened=False, accumulation=1, own_cadence=True,
    )  # fmt: skip
    chosen = Chosen(replace(Limits(), save=replace(Limits().save, every=77.0)))
    supervision = Supervision(run, Ledger(run.ledger, FakeClock()), trainee, chosen, FakeClock())
    assert supervision._restart().step == 4
    assert asked == [77.0]
