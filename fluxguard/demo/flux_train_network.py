"""The entry point: a LoRA training of a tiny model of the FLUX kind."""

import argparse
import copy
import logging

import torch
import train_network
from accelerate import Accelerator
from library import flux_models, flux_train_utils, flux_utils, strategy_base, strategy_flux, train_util
from library.deeds import met
from library.faults import sleep_if_asked
from library.network_trainer import prepared_frozen
from library.utils import clean_memory_on_device

logger = logging.getLogger(__name__)


class FluxNetworkTrainer(train_network.NetworkTrainer):
    """Fills in what is particular to FLUX."""

    def __init__(self):
        super().__init__()
        self.sample_prompts_te_outputs = None
        self.is_swapping_blocks = False
        self.train_clip_l = False
        self.train_t5xxl = False

    def assert_extra_args(self, args, train_dataset_group, val_dataset_group):
        if args.fp8_base_unet:
            args.fp8_base = True
        if args.cache_text_encoder_outputs_to_disk and not args.cache_text_encoder_outputs:
            logger.warning("cache_text_encoder_outputs_to_disk is enabled, so the outputs are cached")
            args.cache_text_encoder_outputs = True
        if args.cache_text_encoder_outputs:
            assert train_dataset_group.is_text_encoder_output_cacheable(), (
                "when caching Text Encoder output, neither caption_dropout_rate nor shuffle_caption can be used"
            )
        self.train_clip_l = not args.network_train_unet_only
        assert not args.blocks_to_swap or not args.cpu_offload_checkpointing, (
            "blocks_to_swap is not supported with cpu_offload_checkpointing"
        )
        if args.split_mode:
            if args.blocks_to_swap is not None:
                logger.warning("split_mode is deprecated. Because blocks_to_swap is set, split_mode is ignored.")
            else:
                logger.warning("split_mode is deprecated. `--blocks_to_swap 18` is automatically set.")
                args.blocks_to_swap = 18

    def load_target_model(self, args, weight_dtype, accelerator):
        met("load")
        # the frozen weights stay in float: a CPU is slow in half precision, and autocast lowers them where it counts
        _, model = flux_utils.load_flow_model(args.pretrained_model_name_or_path, torch.float32, "cpu")
        if args.fp8_base:
            logger.info("Cast FLUX model to fp8. This may take a while.")
            model.to(torch.float8_e4m3fn).to(torch.float32)

        self.is_swapping_blocks = args.blocks_to_swap is not None and args.blocks_to_swap > 0
        if self.is_swapping_blocks:
            logger.info("enable block swap: blocks_to_swap=%d", args.blocks_to_swap)
            model.enable_block_swap(args.blocks_to_swap, accelerator.device)

        clip_l = flux_utils.load_clip_l(args.clip_l, torch.float32, "cpu").eval()
        t5xxl = flux_utils.load_t5xxl(args.t5xxl, torch.float32, "cpu").eval()
        ae = flux_utils.load_ae(args.ae, torch.float32, "cpu")
        return flux_utils.MODEL_VERSION_FLUX_V1, [clip_l, t5xxl], ae, model

    def get_tokenize_strategy(self, args):
        return strategy_flux.FluxTokenizeStrategy(args.t5xxl_max_token_length or 512, args.tokenizer_cache_dir)

    def get_tokenizers(self, tokenize_strategy: strategy_flux.FluxTokenizeStrategy):
        return [tokenize_strategy.clip_l, tokenize_strategy.t5xxl]

    def get_latents_caching_strategy(self, args):
        return strategy_flux.FluxLatentsCachingStrategy(args.cache_latents_to_disk, args.vae_batch_size, False)

    def get_text_encoding_strategy(self, args):
        return strategy_flux.FluxTextEncodingStrategy(apply_t5_attn_mask=args.apply_t5_attn_mask)

    def get_text_encoder_outputs_caching_strategy(self, args):
        if not args.cache_text_encoder_outputs:
            return None
        return strategy_flux.FluxTextEncoderOutputsCachingStrategy(
            args.cache_text_encoder_outputs_to_disk,
            args.text_encoder_batch_size,
            args.skip_cache_check,
            is_partial=self.train_clip_l or self.train_t5xxl,
            apply_t5_attn_mask=args.apply_t5_attn_mask,
        )

    def get_models_for_text_encoding(self, args, accelerator, text_encoders):
        if args.cache_text_encoder_outputs:
            return text_encoders[0:1] if self.train_clip_l else None
        return text_encoders

    def get_text_encoders_train_flags(self, args, text_encoders):
        return [self.train_clip_l, self.train_t5xxl]

    def is_train_text_encoder(self, args):
        return self.train_clip_l

    def is_text_encoder_not_needed_for_training(self, args):
        return args.cache_text_encoder_outputs and not self.is_train_text_encoder(args)

    def cache_text_encoder_outputs_if_needed(
        self, args, accelerator: Accelerator, unet, vae, text_encoders, dataset: train_util.DatasetGroup, weight_dtype
    ):
        for text_encoder in text_encoders:
            text_encoder.to(accelerator.device)
        if not args.cache_text_encoder_outputs:
            return
        dataset.new_cache_text_encoder_outputs(text_encoders, accelerator)

        if args.sample_prompts is not None:
            logger.info("cache Text Encoder outputs for sample prompt: %s", args.sample_prompts)
            tokenize_strategy = strategy_base.TokenizeStrategy.get_strategy()
            text_encoding_strategy = strategy_base.TextEncodingStrategy.get_strategy()
            with torch.no_grad():
                self.sample_prompts_te_outputs = {
                    prompt: text_encoding_strategy.encode_tokens(
                        tokenize_strategy, text_encoders, tokenize_strategy.tokenize(prompt)
                    )
                    for prompt in (p["prompt"] for p in train_util.load_prompts(args.sample_prompts))
                }
        accelerator.wait_for_everyone()
        clean_memory_on_device(accelerator.device)

    def sample_images(self, accelerator, args, epoch, global_step, device, ae, tokenizer, text_encoder, flux):
        text_encoders = self.get_models_for_text_encoding(args, accelerator, text_encoder)
        flux_train_utils.sample_images(
            accelerator, args, epoch, global_step, flux, ae, text_encoders, self.sample_prompts_te_outputs
        )

    def get_noise_scheduler(self, args: argparse.Namespace, device: torch.device):
        noise_scheduler = flux_train_utils.FlowMatchEulerDiscreteScheduler(1000, shift=args.discrete_flow_shift)
        self.noise_scheduler_copy = copy.deepcopy(noise_scheduler)
        return noise_scheduler

    def encode_images_to_latents(self, args, vae, images):
        return vae.encode(images)

    def get_noise_pred_and_target(
        self, args, accelerator, noise_scheduler, latents, batch, text_encoder_conds, unet, is_train=True
    ):
        noise = torch.randn_like(latents)
        bsz = latents.shape[0]
        noisy_model_input, timesteps, sigmas = flux_train_utils.get_noisy_model_input_and_timesteps(
            args, noise_scheduler, latents, noise, accelerator.device, torch.float32
        )

        packed_noisy_model_input = flux_utils.pack_latents(noisy_model_input)
        packed_latent_height, packed_latent_width = noisy_model_input.shape[2] // 2, noisy_model_input.shape[3] // 2
        img_ids = flux_utils.prepare_img_ids(bsz, packed_latent_height, packed_latent_width).to(accelerator.device)
        guidance_vec = torch.full((bsz,), float(args.guidance_scale), device=accelerator.device)

        l_pooled, t5_out, txt_ids, t5_attn_mask = text_encoder_conds
        if not args.apply_t5_attn_mask:
            t5_attn_mask = None

        with torch.set_grad_enabled(is_train), accelerator.autocast():
            model_pred = unet(
                img=packed_noisy_model_input,
                img_ids=img_ids,
                txt=t5_out,
                txt_ids=txt_ids,
                y=l_pooled,
                timesteps=timesteps / 1000,
                guidance=guidance_vec,
                txt_attention_mask=t5_attn_mask,
            )

        model_pred = flux_utils.unpack_latents(model_pred, packed_latent_height, packed_latent_width)
        model_pred, weighting = flux_train_utils.apply_model_prediction_type(
            args, model_pred, noisy_model_input, sigmas
        )
        target = noise - latents
        return model_pred, target, timesteps, weighting

    def update_metadata(self, metadata, args):
        metadata["ss_model_type"] = args.model_type
        metadata["ss_guidance_scale"] = args.guidance_scale
        metadata["ss_timestep_sampling"] = args.timestep_sampling
        metadata["ss_discrete_flow_shift"] = args.discrete_flow_shift

    def on_step_start(self, args, accelerator, network, text_encoders, unet, batch, weight_dtype, is_train=True):
        sleep_if_asked()

    def prepare_unet_with_accelerator(self, args: argparse.Namespace, accelerator: Accelerator, unet: torch.nn.Module):
        if not self.is_swapping_blocks:
            return super().prepare_unet_with_accelerator(args, accelerator, unet)

        flux: flux_models.Flux = unet
        flux = prepared_frozen(accelerator, flux, device_placement=[not self.is_swapping_blocks])
        accelerator.unwrap_model(flux).move_to_device_except_swap_blocks(accelerator.device)
        accelerator.unwrap_model(flux).prepare_block_swap_before_forward()
        return flux


def setup_parser() -> argparse.ArgumentParser:
    parser = train_network.setup_parser()
    train_util.add_dit_training_arguments(parser)
    flux_train_utils.add_flux_train_arguments(parser)
    parser.add_argument("--split_mode", action="store_true")
    return parser


if __name__ == "__main__":
    parser = setup_parser()

    args = parser.parse_args()
    train_util.verify_command_line_training_args(args)

    trainer = FluxNetworkTrainer()
    trainer.train(args)
    met("end")
