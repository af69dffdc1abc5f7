"""The flags, under upstream's names; those that FluxGym or a supervisor may pass are taken, effect or not."""

import argparse
import logging

logger = logging.getLogger(__name__)

INT, FLOAT = int, float


def add_values(parser: argparse.ArgumentParser, kind, **defaults) -> None:
    """Add flags that take one value."""
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=kind, default=default)


def add_switches(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add flags that take no value."""
    for name in names:
        parser.add_argument(f"--{name}", action="store_true")


def add_sd_models_arguments(parser: argparse.ArgumentParser) -> None:
    add_values(parser, str, pretrained_model_name_or_path=None, tokenizer_cache_dir=None)
    add_switches(parser, "v2", "v_parameterization")


def add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    add_values(parser, str, train_data_dir=None, reg_data_dir=None, dataset_config=None, resolution=None)
    add_values(parser, str, caption_extension=".caption", cache_info=None)
    add_values(parser, INT, train_batch_size=1, keep_tokens=0, dataset_repeats=1, vae_batch_size=1)
    add_values(parser, INT, min_bucket_reso=256, max_bucket_reso=1024, bucket_reso_steps=64)
    add_values(parser, FLOAT, caption_dropout_rate=0.0, caption_tag_dropout_rate=0.0)
    add_switches(parser, "shuffle_caption", "flip_aug", "alpha_mask", "enable_bucket", "bucket_no_upscale")
    add_switches(parser, "cache_latents", "cache_latents_to_disk", "skip_cache_check")


def add_optimizer_arguments(parser: argparse.ArgumentParser) -> None:
    add_values(parser, str, optimizer_type="", lr_scheduler="constant", lr_scheduler_type="")
    add_values(parser, FLOAT, learning_rate=2.0e-6, max_grad_norm=1.0, lr_warmup_steps=0)
    add_values(parser, INT, lr_scheduler_num_cycles=1)
    parser.add_argument("--optimizer_args", type=str, default=None, nargs="*")
    parser.add_argument("--lr_scheduler_args", type=str, default=None, nargs="*")


def add_sd_saving_arguments(parser: argparse.ArgumentParser) -> None:
    add_values(parser, str, output_dir=None, output_name=None, resume=None)
    parser.add_argument("--save_precision", type=str, default=None, choices=[None, "float", "fp16", "bf16"])
    add_values(parser, INT, save_every_n_epochs=None, save_every_n_steps=None, save_n_epoch_ratio=None)
    add_values(parser, INT, save_last_n_epochs=None, save_last_n_epochs_state=None)
    add_values(parser, INT, save_last_n_steps=None, save_last_n_steps_state=None)
    add_switches(parser, "save_state", "save_state_on_train_end")


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    add_values(parser, INT, max_train_steps=1600, max_train_epochs=None, max_data_loader_n_workers=8, seed=None)
    add_values(parser, INT, gradient_accumulation_steps=1, max_token_length=None, ddp_timeout=None)
    parser.add_argument("--mixed_precision", type=str, default="no", choices=["no", "fp16", "bf16"])
    add_values(parser, str, logging_dir=None, log_prefix=None, log_tracker_name=None, log_tracker_config=None)
    add_values(parser, str, wandb_run_name=None, training_comment=None, config_file=None, vae=None)
    parser.add_argument("--log_with", type=str, default=None, choices=["tensorboard", "wandb", "all"])
    parser.add_argument("--console_log_level", type=str, default=None)
    parser.add_argument("--loss_type", type=str, default="l2", choices=["l1", "l2", "huber", "smooth_l1"])
    add_values(parser, FLOAT, huber_c=0.1)
    add_switches(parser, "persistent_data_loader_workers", "gradient_checkpointing", "highvram", "lowram")
    add_switches(parser, "sdpa", "xformers", "mem_eff_attn", "full_fp16", "full_bf16", "no_half_vae", "torch_compile")
    add_switches(parser, "fp8_base", "fp8_base_unet", "ddp_gradient_as_bucket_view", "ddp_static_graph")
    add_values(parser, str, sample_prompts=None, sample_sampler="ddim")
    add_values(parser, INT, sample_every_n_steps=None, sample_every_n_epochs=None)
    add_switches(parser, "sample_at_first")


def add_dit_training_arguments(parser: argparse.ArgumentParser) -> None:
    add_switches(parser, "cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk")
    add_switches(parser, "disable_mmap_load_safetensors", "cpu_offload_checkpointing")
    add_values(parser, INT, text_encoder_batch_size=None, blocks_to_swap=None)
    add_values(parser, str, weighting_scheme="uniform")


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--save_model_as", type=str, default="safetensors", choices=[None, "ckpt", "pt", "safetensors"])
    add_values(parser, FLOAT, unet_lr=None, network_alpha=1, network_dropout=None, scale_weight_norms=None)
    parser.add_argument("--text_encoder_lr", type=float, default=None, nargs="*")
    add_values(parser, str, network_weights=None, network_module=None)
    add_values(parser, INT, network_dim=None, initial_epoch=None, initial_step=None)
    parser.add_argument("--network_args", type=str, default=None, nargs="*")
    add_switches(parser, "network_train_unet_only", "network_train_text_encoder_only", "no_metadata")
    add_switches(parser, "skip_until_initial_step")


def verify_command_line_training_args(args: argparse.Namespace) -> None:
    """Warn of secrets on the command line; the miniature has no flag that takes one."""


def verify_training_args(args: argparse.Namespace) -> None:
    """Switch on what other flags imply, and refuse what cannot be."""
    if args.cache_latents_to_disk and not args.cache_latents:
        args.cache_latents = True
        logger.warning("cache_latents_to_disk is enabled, so cache_latents is also enabled")
    for name in ("sample_every_n_steps", "sample_every_n_epochs"):
        if (value := getattr(args, name)) is not None and value <= 0:
            logger.warning("%s is not positive, so sampling is disabled", name)
            setattr(args, name, None)
