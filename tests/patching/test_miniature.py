"""The hardened miniature trains what the unhardened one trains, and resumes bit for bit."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxguard import manifest
from fluxguard.patching import apply, check, revert

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "fluxguard" / "demo"
FLAGS = shlex.split("""
--pretrained_model_name_or_path /none.sft --clip_l /none --t5xxl /none --ae /none --cache_latents_to_disk
--save_model_as safetensors --sdpa --persistent_data_loader_workers --max_data_loader_n_workers 2 --seed 42
--gradient_checkpointing --mixed_precision bf16 --save_precision bf16 --network_module networks.lora_flux
--network_dim 4 --learning_rate 8e-4 --cache_text_encoder_outputs --cache_text_encoder_outputs_to_disk --fp8_base
--highvram --max_train_epochs 2 --save_every_n_epochs 1 --output_name mini --timestep_sampling shift
--discrete_flow_shift 3.1582 --model_prediction_type raw --guidance_scale 1 --loss_type l2
--optimizer_type adafactor --optimizer_args relative_step=False scale_parameter=False warmup_init=False
--lr_scheduler constant_with_warmup --max_grad_norm 0.0
--save_state --save_every_n_steps 5
""")

Train = Callable[..., str]


def tensors(path: Path) -> dict[str, bytes]:
    """The tensors of a file as bytes, without its header, which holds times."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    places = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: blob[8 + size + start : 8 + size + end] for name, (start, end) in places.items()}


@pytest.fixture
def train(spawn: Any) -> Train:
    """Train in a checkout until the end, or until a state appears (it is killed a moment later)."""
    pytest.importorskip("accelerate")

    def start(checkout: Path, output: Path, *extra: str, until: str = "") -> str:
        trainer = spawn(
            checkout / "flux_train_network.py", *FLAGS, "--output_dir", output, *extra, cwd=checkout,
            env={"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}, torch=True,
        )  # fmt: skip
        if until:
            trainer.when((output / until).is_dir, within=90.0)
            os.killpg(trainer.pid, signal.SIGKILL)
            assert trainer.ends() == -signal.SIGKILL
        else:
            assert trainer.ends(within=90.0) == 0, trainer.output
        return str(trainer.output)

    return start


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_killed_training_of_the_hardened_miniature_ends_with_the_same_weights(train: Train, tmp_path: Path) -> None:
    """From within an epoch; tests/guard/test_exact_resume.py and the campaign kill it everywhere else."""
    state = "mini-step00000005-state"
    hardened = apply(DEMO, to=tmp_path / "hardened").checkout
    train(DEMO, tmp_path / "first", "--max_train_epochs", "1")  # draws the pictures and fills the caches
    pictures = ("--train_data_dir", str(tmp_path / "first" / "dataset"), "--caption_extension", ".txt")
    train(DEMO, tmp_path / "plain", *pictures)
    train(hardened, tmp_path / "killed", *pictures, until=state)
    said = train(hardened, tmp_path / "killed", *pictures, "--resume", str(tmp_path / "killed" / state))
    assert tensors(tmp_path / "killed/mini.safetensors") == tensors(tmp_path / "plain/mini.safetensors")
    assert "24/24" in said
    assert manifest.verify(tmp_path / "killed/mini-state").true_step == 24


@pytest.mark.integration
def test_the_miniature_is_hardened_by_every_rule_and_comes_back(tmp_path: Path) -> None:
    report = apply(DEMO, to=tmp_path / "hardened")
    assert report.hardened
    assert all(row.sites for row in report.rows if row.required)
    assert check(report.checkout).hardened
    revert(report.checkout)
    for path in DEMO.rglob("*.py"):
        assert (report.checkout / path.relative_to(DEMO)).read_bytes() == path.read_bytes()
