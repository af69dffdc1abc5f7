"""Makes what a drill needs: the miniature trainer (hardened or as it is), a train.sh, limits of its own."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from fluxguard import patching
from fluxguard.errors import InputError
from fluxguard.launch import trainsh
from fluxguard.launch.script import Script

MINIATURE = Path(__file__).resolve().parents[1] / "demo"

EPOCHS, IMAGES, SAVE_EVERY = 4, 12, 5
STEPS = EPOCHS * IMAGES

_LIMITS = {
    "wait": {"block_swap": 2.0, "batch": 3.0, "first_batch": 30.0, "read": 5.0},
    "phase": {"step": {"patience": 20.0, "ceiling": 30.0}},
    "watch": {"grace": 2.0, "settle": 0.5},
}
"""A drill has no hour to wait: a swap may take 2 s and a batch 3 s."""


_ENV = {"ACCELERATE_USE_CPU": "true", "TQDM_MININTERVAL": "0"}
"""A bar that skips the prints of such quick steps would take most of their time for a pause."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where a drill happens."""

    train_sh: Path
    output_dir: Path
    limits: Path
    faults: Path
    """A file put here makes the miniature stuck once: `swap` or `read`."""


def prepare(
    folder: Path, *, hardened: bool = True, name: str = "demo", epochs: int = EPOCHS, flags: tuple[str, ...] = ()
) -> Workshop:
    """Make a workshop in `folder`; one that is there already is used again. Takes about a second.

    Runs of one folder share their data set and its caches. Raises InputError without torch, OSError and PatchError.
    """
    for needed in ("torch", "accelerate", "PIL"):
        if importlib.util.find_spec(needed) is None:
            raise InputError("demo", f"needs {needed}: {sys.executable} -m pip install -e '.[demo]'")
    folder = folder.resolve()
    output_dir, faults = folder / name, folder / "faults"
    for made in (output_dir, faults):
        made.mkdir(parents=True, exist_ok=True)
    checkout = _hardened_miniature(folder) if hardened else MINIATURE
    script = Script(
        argv=(
            sys.executable, "-m", "accelerate.commands.launch",
            "--mixed_precision", "bf16", "--num_cpu_threads_per_process", "1",
            str(checkout / "flux_train_network.py"),
            *_flags(folder, output_dir, name, epochs),
            *flags,
        ),
        cwd=folder,
        env=_ENV | {"MINIATURE_FAULTS": str(faults)},
        activate=None,
    )  # fmt: skip
    train_sh = output_dir / "train.sh"
    train_sh.write_text(trainsh.render(script), "utf-8")
    limits = folder / "limits.json"
    limits.write_text(json.dumps(_LIMITS, indent=2), "utf-8")
    return Workshop(train_sh=train_sh, output_dir=output_dir, limits=limits, faults=faults)


def _hardened_miniature(folder: Path) -> Path:
    target = folder / "sd-scripts"
    if not patching.is_hardened(target):
        patching.apply(MINIATURE, to=target)
    return target


def _flags(folder: Path, output_dir: Path, name: str, epochs: int) -> tuple[str, ...]:
    """Return what FluxGym writes for a 16 GB card, with block swap, and states within the epoch."""
    models = folder / "models"  # the miniature makes its own weights where there are none
    return (
        "--pretrained_model_name_or_path", str(models / "flux1-dev.sft"),
        "--clip_l", str(models / "clip_l.safetensors"),
        "--t5xxl", str(models / "t5xxl_fp16.safetensors"),
        "--ae", str(models / "ae.sft"),
        "--cache_latents_to_disk", "--save_model_as", "safetensors",
        "--sdpa", "--persistent_data_loader_workers", "--max_data_loader_n_workers", "2", "--seed", "42",
        "--gradient_checkpointing", "--mixed_precision", "bf16", "--save_precision", "bf16",
        "--network_module", "networks.lora_flux", "--network_dim", "4", "--blocks_to_swap", "2",
        "--optimizer_type", "adafactor",
        "--optimizer_args", "relative_step=False", "scale_parameter=False", "warmup_init=False",
        "--lr_scheduler", "constant_with_warmup", "--max_grad_norm", "0.0", "--learning_rate", "8e-4",
        "--cache_text_encoder_outputs", "--cache_text_encoder_outputs_to_disk", "--fp8_base", "--highvram",
        "--max_train_epochs", str(epochs), "--save_every_n_epochs", "1",
        "--save_state", "--save_every_n_steps", str(SAVE_EVERY),
        "--dataset_config", str(dataset(folder)),
        "--output_dir", str(output_dir), "--output_name", name,
        "--timestep_sampling", "shift", "--discrete_flow_shift", "3.1582",
        "--model_prediction_type", "raw", "--guidance_scale", "1", "--loss_type", "l2",
    )  # fmt: skip


def dataset(folder: Path) -> Path:
    """Return the dataset.toml of a workshop; its images are drawn when they are not there yet."""
    images = folder / "images"
    images.mkdir(exist_ok=True)
    for index in range(IMAGES):
        _draw(images / f"picture-{index:02d}.png", index)
    config = folder / "dataset.toml"
    config.write_text(
        "[general]\nshuffle_caption = false\ncaption_extension = '.txt'\nkeep_tokens = 1\n\n"
        "[[datasets]]\nresolution = 128\nbatch_size = 1\nkeep_tokens = 1\n\n"
        f"[[datasets.subsets]]\nimage_dir = '{images}'\nclass_tokens = 'tok'\nnum_repeats = 1\n",
        "utf-8",
    )
    return config


def _draw(path: Path, index: int) -> None:
    if path.exists():
        return
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (128, 128), (37 * index % 256, 91 * index % 256, 160))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((20 + index, 20, 90, 90 + index), fill=(200, 19 * index % 256, 80))
    pen.rectangle((50, 60 + index, 110, 120), fill=(30, 120, 23 * index % 256))
    picture.save(path)
    path.with_suffix(".txt").write_text(f"tok a shape number {index}", "utf-8")
