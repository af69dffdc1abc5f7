"""Noise, timesteps and sample pictures of a FLUX training."""

import argparse
import itertools
import logging
import math
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from library import flux_models, flux_utils, strategy_base
from library.deeds import met
from library.prompts import load_prompts
from library.utils import clean_memory_on_device
from PIL import Image

logger = logging.getLogger(__name__)

# a picture of this size takes a fraction of a second; a prompt may ask for more
SAMPLE_SIZE = 128
SAMPLE_STEPS = 4


class FlowMatchEulerDiscreteScheduler:
    """Knows the noise levels of the timesteps."""

    def __init__(self, num_train_timesteps: int = 1000, shift: float = 1.0) -> None:
        self.config = SimpleNamespace(num_train_timesteps=num_train_timesteps)
        sigmas = torch.linspace(1.0, 1.0 / num_train_timesteps, num_train_timesteps)
        self.sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
        self.timesteps = self.sigmas * num_train_timesteps


def sample_is_due(args: argparse.Namespace, epoch: int | None, steps: int) -> bool:
    """Decide as upstream does: at the start only if asked, and epochs before steps."""
    if steps == 0:
        return args.sample_at_first
    if args.sample_every_n_epochs is not None:
        return epoch is not None and epoch % args.sample_every_n_epochs == 0
    if args.sample_every_n_steps is not None:
        return steps % args.sample_every_n_steps == 0 and epoch is None
    return False


def sample_images(
    accelerator: Accelerator,
    args: argparse.Namespace,
    epoch: int | None,
    steps: int,
    flux: flux_models.Flux,
    ae: flux_models.AutoEncoder,
    text_encoders: list[Any] | None,
    sample_prompts_te_outputs: dict[str, Any] | None,
) -> None:
    """Make one picture for each prompt if it is time, and leave torch's random state as it was."""
    if not sample_is_due(args, epoch, steps):
        return
    logger.info("generating sample images at step: %s", steps)
    if args.sample_prompts is None or not os.path.isfile(args.sample_prompts):
        logger.error("No prompt file: %s", args.sample_prompts)
        return

    flux = accelerator.unwrap_model(flux)
    prompts = load_prompts(args.sample_prompts)
    save_dir = args.output_dir + "/sample"
    os.makedirs(save_dir, exist_ok=True)

    rng_state = torch.get_rng_state()
    cuda_rng_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    with torch.no_grad(), accelerator.autocast():
        for prompt_dict in prompts:
            sample_image_inference(
                *(accelerator, args, flux, text_encoders, ae, save_dir, prompt_dict, epoch, steps),
                sample_prompts_te_outputs,
            )

    torch.set_rng_state(rng_state)
    if cuda_rng_state is not None:
        torch.cuda.set_rng_state(cuda_rng_state)

    clean_memory_on_device(accelerator.device)


def encode_prompt(prompt: str, text_encoders: list[Any] | None, cached: dict[str, Any] | None) -> list[Any]:
    """Take the cached outputs, and replace those that a text encoder in training gives anew."""
    conds = list(cached[prompt]) if cached and prompt in cached else []
    if text_encoders:
        tokenize_strategy = strategy_base.TokenizeStrategy.get_strategy()
        encoding_strategy = strategy_base.TextEncodingStrategy.get_strategy()
        encoded = encoding_strategy.encode_tokens(tokenize_strategy, text_encoders, tokenize_strategy.tokenize(prompt))
        conds = [c if e is None else e for c, e in zip(conds or encoded, encoded, strict=True)]
    return conds


def sample_image_inference(
    accelerator, args, flux, text_encoders, ae, save_dir, prompt_dict, epoch, steps, sample_prompts_te_outputs
) -> None:
    """Make and save the picture of one prompt."""
    seed = prompt_dict.get("seed")
    height, width = (
        max(64, side - side % 16) for side in (prompt_dict.get(k, SAMPLE_SIZE) for k in ("height", "width"))
    )
    if seed is not None:
        torch.manual_seed(seed)
    else:
        torch.seed()
    logger.info("prompt: %s", prompt_dict["prompt"])
    met("sampling")
    l_pooled, t5_out, txt_ids, _ = encode_prompt(prompt_dict["prompt"], text_encoders, sample_prompts_te_outputs)

    packed_latent_height, packed_latent_width = height // 16, width // 16
    noise = torch.randn(1, packed_latent_height * packed_latent_width, 16 * 2 * 2, device=accelerator.device)
    timesteps = get_schedule(prompt_dict.get("sample_steps", SAMPLE_STEPS), noise.shape[1])
    img_ids = flux_utils.prepare_img_ids(1, packed_latent_height, packed_latent_width).to(accelerator.device)
    x = denoise(*(flux, noise, img_ids, t5_out, txt_ids, l_pooled), timesteps, prompt_dict.get("guidance_scale", 3.5))
    x = flux_utils.unpack_latents(x, packed_latent_height, packed_latent_width)
    x = ae.decode(x.to(ae.device, ae.dtype)).float().clamp(-1, 1).permute(0, 2, 3, 1)
    image = Image.fromarray((127.5 * (x + 1.0)).cpu().numpy().astype(np.uint8)[0])

    ts_str = time.strftime("%Y%m%d%H%M%S", time.localtime())
    num_suffix = f"e{epoch:06d}" if epoch is not None else f"{steps:06d}"
    seed_suffix = "" if seed is None else f"_{seed}"
    i: int = prompt_dict["enum"]
    name = "" if args.output_name is None else args.output_name + "_"
    img_filename = f"{name}{num_suffix}_{i:02d}_{ts_str}{seed_suffix}.png"
    image.save(os.path.join(save_dir, img_filename))


def get_schedule(num_steps: int, image_seq_len: int, base_shift: float = 0.5, max_shift: float = 1.15) -> list[float]:
    """List the times from noise to picture; more tokens stay longer in the noise."""
    mu = base_shift + (max_shift - base_shift) * (image_seq_len - 256) / (4096 - 256)
    times = torch.linspace(1, 0, num_steps + 1)
    return (math.exp(mu) / (math.exp(mu) + (1 / times - 1))).tolist()


def denoise(model, img, img_ids, txt, txt_ids, vec, timesteps: list[float], guidance: float) -> torch.Tensor:
    """Walk from noise to latents by Euler's steps."""
    guidance_vec = torch.full((img.shape[0],), guidance, device=img.device, dtype=img.dtype)
    for t_curr, t_prev in itertools.pairwise(timesteps):
        t_vec = torch.full((img.shape[0],), t_curr, dtype=img.dtype, device=img.device)
        model.prepare_block_swap_before_forward()
        pred = model(img=img, img_ids=img_ids, txt=txt, txt_ids=txt_ids, y=vec, timesteps=t_vec, guidance=guidance_vec)
        img = img + (t_prev - t_curr) * pred
    model.prepare_block_swap_before_forward()
    return img


def get_noisy_model_input_and_timesteps(
    args: argparse.Namespace, noise_scheduler, latents: torch.Tensor, noise: torch.Tensor, device, dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw a time for each picture and mix latents and noise accordingly: (input, timesteps, sigmas)."""
    bsz = latents.shape[0]
    if args.timestep_sampling in ("uniform", "sigmoid", "shift", "flux_shift"):
        if args.timestep_sampling == "uniform":
            t = torch.rand((bsz,), device=device)
        else:
            t = torch.sigmoid(args.sigmoid_scale * torch.randn((bsz,), device=device))
        if args.timestep_sampling == "shift":
            shift = args.discrete_flow_shift
            t = (t * shift) / (1 + (shift - 1) * t)
        elif args.timestep_sampling == "flux_shift":
            tokens = latents.shape[2] * latents.shape[3] // 4
            mu = 0.5 + 0.65 * (tokens - 256) / 3840
            t = math.exp(mu) / (math.exp(mu) + (1 / t - 1))
    else:
        indices = (torch.rand((bsz,)) * noise_scheduler.config.num_train_timesteps).long()
        t = noise_scheduler.sigmas[indices].to(device)
    timesteps = t * 1000.0
    sigmas = t.view(-1, 1, 1, 1)
    noisy_model_input = (1.0 - sigmas) * latents + sigmas * noise
    return noisy_model_input.to(dtype), timesteps.to(dtype), sigmas


def apply_model_prediction_type(args: argparse.Namespace, model_pred, noisy_model_input, sigmas):
    """Bring the prediction to the velocity form: (prediction, weighting)."""
    if args.model_prediction_type == "raw":
        return model_pred, None
    if args.model_prediction_type == "additive":
        return model_pred + noisy_model_input, None
    return model_pred * (-sigmas) + noisy_model_input, None


def add_flux_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clip_l", type=str)
    parser.add_argument("--t5xxl", type=str)
    parser.add_argument("--ae", type=str)
    parser.add_argument("--controlnet_model_name_or_path", type=str, default=None)
    parser.add_argument("--t5xxl_max_token_length", type=int, default=None)
    parser.add_argument("--apply_t5_attn_mask", action="store_true")
    parser.add_argument("--guidance_scale", type=float, default=3.5)
    parser.add_argument(
        "--timestep_sampling", choices=["sigma", "uniform", "sigmoid", "shift", "flux_shift"], default="sigma"
    )
    parser.add_argument("--sigmoid_scale", type=float, default=1.0)
    parser.add_argument("--model_prediction_type", choices=["raw", "additive", "sigma_scaled"], default="sigma_scaled")
    parser.add_argument("--discrete_flow_shift", type=float, default=3.0)
    parser.add_argument("--model_type", choices=["flux", "chroma"], default="flux")
