"""Laws of what is read from a checkout before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.launch.trainer import Trainer
from fluxguard.supervisor import order as orders


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
