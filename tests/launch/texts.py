"""The train scripts that FluxGym writes, flag by flag, and what bash makes of them."""

from __future__ import annotations

from collections.abc import Iterator

ROOT = "/home/me/my loras (new)/it's fluxgym"
NAME = "my-lora"
OUT = f"{ROOT}/outputs/{NAME}"

_ADAFACTOR = [
    "--optimizer_type adafactor",
    '--optimizer_args "relative_step=False" "scale_parameter=False" "warmup_init=False"',
]
_CONSTANT = ["--lr_scheduler constant_with_warmup", "--max_grad_norm 0.0"]
OPTIMIZERS = {
    "20G": ["--optimizer_type adamw8bit"],
    "16G": [*_ADAFACTOR, *_CONSTANT],
    "12G": [*_ADAFACTOR, "--split_mode", '--network_args "train_blocks=single"', *_CONSTANT],
}
SAMPLE = f'--sample_prompts="{OUT}/sample_prompts.txt" --sample_every_n_steps="200"'


def _lines(optimizer: list[str]) -> Iterator[str]:
    yield "accelerate launch"
    yield from ("--mixed_precision bf16", "--num_cpu_threads_per_process 1", "sd-scripts/flux_train_network.py")
    yield f'--pretrained_model_name_or_path "{ROOT}/models/unet/flux1-dev.sft"'
    yield f'--clip_l "{ROOT}/models/clip/clip_l.safetensors"'
    yield f'--t5xxl "{ROOT}/models/clip/t5xxl_fp16.safetensors"'
    yield f'--ae "{ROOT}/models/vae/ae.sft"'
    yield from ("--cache_latents_to_disk", "--save_model_as safetensors", "--sdpa --persistent_data_loader_workers")
    yield from ("--max_data_loader_n_workers 2", "--seed 42", "--gradient_checkpointing", "--mixed_precision bf16")
    yield from ("--save_precision bf16", "--network_module networks.lora_flux", "--network_dim 4")
    yield from optimizer
    yield from ("--learning_rate 8e-4", "--cache_text_encoder_outputs", "--cache_text_encoder_outputs_to_disk")
    yield from ("--fp8_base", "--highvram", "--max_train_epochs 16", "--save_every_n_epochs 4")
    yield from (f'--dataset_config "{OUT}/dataset.toml"', f'--output_dir "{OUT}"', f"--output_name {NAME}")
    yield from ("--timestep_sampling shift", "--discrete_flow_shift 3.1582", "--model_prediction_type raw")
    yield from ("--guidance_scale 1", "--loss_type l2")


def fluxgym(vram: str, *, sample: bool = False, mark: str = "\\", newline: str = "\n") -> str:
    """Return the script of one preset; the sample flags are glued to the optimizer's last mark, as FluxGym does."""
    optimizer = OPTIMIZERS[vram]
    if sample:
        optimizer = [*optimizer[:-1], f"{optimizer[-1]} {mark}{SAMPLE}"]
    return f" {mark}{newline}  ".join(_lines(optimizer)) + f" {mark}"
