"""Laws of the environment that is active already when a training is started, as FluxGym's own is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.launch import interpreter


def venv(folder: Path, *programs: str) -> Path:
    """Make an environment with these programs."""
    for name in ("python", *programs):
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
    return folder


def test_the_active_environment_launches_the_trainer(tmp_path: Path) -> None:
    """As `accelerate launch` in the script would; before one that lies beside the checkout, behind what is named."""
    mine, beside = venv(tmp_path / "mine", "accelerate"), venv(tmp_path / "gym" / "env")
    named = venv(tmp_path / "named")
    active = interpreter.active({"VIRTUAL_ENV": str(mine)}, None)
    checkout = tmp_path / "gym" / "sd-scripts"
    assert interpreter.choose(checkout, None, None, [], None, active) == mine / "bin" / "python"
    assert interpreter.choose(checkout, None, None, [], None, None) == beside / "bin" / "python"
    assert interpreter.choose(checkout, None, named, [], None, active) == named / "bin" / "python"
    assert interpreter.choose(checkout, str(named), None, [], None, active) == named / "bin" / "python"


@pytest.mark.parametrize(
    ("programs", "env", "counts"),
    [
        (("accelerate",), {"VIRTUAL_ENV": "{}"}, True),
        (("accelerate",), {"CONDA_PREFIX": "{}", "CONDA_DEFAULT_ENV": "flux"}, True),
        (("accelerate",), {"CONDA_PREFIX": "{}", "CONDA_DEFAULT_ENV": "base"}, False),
        ((), {"VIRTUAL_ENV": "{}"}, False),
        (("accelerate",), {}, False),
    ],
)
def test_only_one_that_can_launch_a_trainer_counts(
    tmp_path: Path, programs: tuple[str, ...], env: dict[str, str], counts: bool
) -> None:
    """Not an editor's, not conda's base, which is active without anybody's doing, and never ours."""
    folder = venv(tmp_path / "env", *programs)
    values = {name: value.format(folder) for name, value in env.items()}
    assert interpreter.active(values, None) == (folder if counts else None)
    assert interpreter.active(values, folder) is None
