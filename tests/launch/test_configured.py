"""Laws of accelerate's settings file: it says what the command does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fluxguard.launch import configured

SETTINGS = "num_machines: 2\nnum_processes: 8\nmachine_rank: 1\nmain_process_ip: gpu1\nmain_process_port: 29501\n"


def usual(home: Path, text: str = SETTINGS) -> Path:
    """Write the file that `accelerate config` would; return its path."""
    path = home / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def said(command: str, home: Path, **env: str) -> tuple[int, int | None, str] | None:
    """Return machines, ranks of each, and where they meet."""
    found = configured.read(command.split(), {"HOME": str(home), **env}, home)
    return (found.most, found.per_node, found.endpoint) if found else None


def test_the_settings_file_says_what_the_command_does_not(tmp_path: Path) -> None:
    """The usual one, or the one that is named, as YAML or JSON."""
    path = usual(tmp_path)
    assert said("accelerate launch train.py", tmp_path) == (2, 4, "gpu1:29501")
    assert said("accelerate launch --num_machines 1 train.py", tmp_path) == (1, 8, "")
    assert said("accelerate launch train.py", tmp_path, HF_HOME=str(path.parent.parent)) == (2, 4, "gpu1:29501")
    (tmp_path / "mine.json").write_text(json.dumps({"num_processes": 3}))
    assert said("accelerate launch --config_file mine.json train.py", tmp_path) == (1, 3, "")


def test_it_says_nothing_to_others(tmp_path: Path) -> None:
    """torchrun has none, and accelerate reads none for processors unless it is named."""
    usual(tmp_path)
    assert said("torchrun train.py", tmp_path) == (1, 1, "")
    assert said("accelerate launch --cpu train.py", tmp_path) == (1, None, "")
    assert said("python train.py", tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "[", "- 1", "num_machines: [2]\nnum_processes: null", "\x00", "num_machines: two"]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, text: str) -> None:
    """Whoever starts the command says what is wrong."""
    usual(tmp_path, text)
    assert said("accelerate launch train.py", tmp_path) == (1, None, "")
    assert said("accelerate launch train.py", tmp_path / "nowhere") == (1, None, "")
