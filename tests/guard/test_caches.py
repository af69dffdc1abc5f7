"""Laws of caches and weights in real processes: a broken cache costs at most one attempt, a kill leaves no part."""

from __future__ import annotations

import errno
import os
import random
import shlex
import signal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxguard.guard import writes
from fluxguard.patching import apply
from tests.conftest import FAULTS, ROOT, Spawn, Spawned

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and FIFOs")

FLAGS = shlex.split("""
--pretrained_model_name_or_path /none.sft --clip_l /none --t5xxl /none --ae /none --cache_latents_to_disk
--save_model_as safetensors --sdpa --persistent_data_loader_workers --max_data_loader_n_workers 1 --seed 42
--mixed_precision bf16 --save_precision bf16 --network_module networks.lora_flux
--network_dim 4 --learning_rate 8e-4 --cache_text_encoder_outputs --cache_text_encoder_outputs_to_disk
--save_every_n_epochs 1 --output_name mini --timestep_sampling shift --model_prediction_type raw
--guidance_scale 1 --loss_type l2 --optimizer_type adafactor
--optimizer_args relative_step=False scale_parameter=False warmup_init=False
--lr_scheduler constant_with_warmup --max_grad_norm 0.0
""")
LATENTS, OUTPUTS = "drawn*_flux.npz", "drawn*_flux_te.npz"


def truncated(path: Path) -> None:
    """As a kill leaves it."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """As a power cut leaves it."""
    os.truncate(path, 0)


def garbled(path: Path) -> None:
    """As a bad disk leaves it."""
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def fifo(path: Path) -> None:
    """As nobody leaves it; whoever opens it waits for ever."""
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    """As a copy gone wrong leaves it."""
    path.unlink()
    path.mkdir()


def flipped(path: Path) -> None:
    """One bit within the largest member: no check of names finds that."""
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda member: member.file_size)
    raw = bytearray(path.read_bytes())
    raw[member.header_offset + 30 + len(member.filename) + member.file_size - 40] ^= 1
    path.write_bytes(raw)


KINDS: tuple[Callable[[Path], None], ...] = (truncated, empty, garbled, fifo, folder)


def is_whole(path: Path) -> bool:
    """Return whether a cache can be read to its end."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is None


Train = Callable[..., Spawned]


@pytest.fixture
def train(spawn: Spawn, tmp_path: Path) -> Train:
    """Start the hardened miniature on the same pictures and caches each time."""
    pytest.importorskip("accelerate")
    checkout = apply(ROOT / "fluxguard" / "demo", to=tmp_path / "hardened").checkout
    limits = tmp_path / "limits.json"
    limits.write_text('{"version": 1, "wait": {"read": 2}}')

    def start(epochs: int, slow: float = 0) -> Spawned:
        pictures = tmp_path / "out" / "dataset"
        data = ("--train_data_dir", pictures, "--caption_extension", ".txt") if pictures.exists() else ()
        return spawn(
            checkout / "flux_train_network.py", *FLAGS, "--output_dir", tmp_path / "out", *data,
            "--max_train_epochs", str(epochs), cwd=checkout,
            env={"PYTHONPATH": "", "MINIATURE_STEP_SLEEP": str(slow), "FLUXGUARD_LIMITS": str(limits)}, torch=True,
        )  # fmt: skip

    return start


@posix
def test_a_cache_that_breaks_while_it_is_trained_costs_one_attempt_and_broken_ones_at_the_start_none(
    train: Train, tmp_path: Path
) -> None:
    """Every kind, of latents and of text encoder outputs: each is named, kept beside, and made anew."""
    pictures = tmp_path / "out" / "dataset"
    first = train(50, slow=0.05)
    first.when((tmp_path / "out" / "mini-000001.safetensors").exists, within=120)
    *others, late = sorted(pictures.glob(LATENTS))
    flipped(late)
    assert first.ends(120) == 1
    assert f"CacheBroken: {late}: " in first.output
    assert not os.path.lexists(late)
    broken = [*zip(KINDS, others, strict=False), *zip(KINDS, sorted(pictures.glob(OUTPUTS)), strict=False)]
    for kind, path in broken:
        kind(path)
    second = train(1)
    assert second.ends(120) == 0, second.output
    for path in (late, *(path for _, path in broken)):
        assert is_whole(path)
        assert path.with_name(f"{path.name}.broken").exists()
        assert path == late or f"cache file {path}: " in second.output
    assert len(broken) == 2 * len(KINDS)


@posix
def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(spawn: Spawn, tmp_path: Path) -> None:
    """What it leaves besides is gone with the next write."""
    path = tmp_path / "image.npz"
    assert spawn(FAULTS / "killed_write.py", "whole").ends() == 0
    before = path.read_bytes()
    assert spawn(FAULTS / "killed_write.py", "kill").ends() == -signal.SIGKILL
    assert path.read_bytes() == before
    assert len(list(tmp_path.glob(f"{writes.PREFIX}*{writes.SUFFIX}"))) == 1
    assert spawn(FAULTS / "killed_write.py", "whole").ends() == 0
    assert list(tmp_path.glob(f"{writes.PREFIX}*")) == []


@posix
def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(spawn: Spawn, tmp_path: Path) -> None:
    """The write ends with the system's own error."""
    path = tmp_path / "image.npz"
    path.write_bytes(b"old")
    full = spawn(FAULTS / "killed_write.py", "full")
    assert full.ends() == 1
    assert f"[Errno {errno.EFBIG}]" in full.output
    assert path.read_bytes() == b"old"
    assert list(tmp_path.glob(f"{writes.PREFIX}*")) == []
