"""What a training does beside its loop: one batch's loss, the network, the header of its files."""

import argparse
import importlib
import logging
import os
import sys

import torch
from accelerate import DistributedType
from library import train_util

logger = logging.getLogger(__name__)


def prepared_frozen(accelerator, model, **how):
    """Prepare a model that is not trained; on several processors accelerate would hand it to DDP, which takes none."""
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        return accelerator.prepare_model(model, evaluation_mode=True)
    return accelerator.prepare(model, **how)


class BaseTrainer:
    """The parts of the trainer that the long function calls."""

    def prepare_network(self, args, accelerator, vae, text_encoder, unet, train_text_encoder, train_unet):
        """Create the network that is to be trained and hang it into the frozen models."""
        sys.path.append(os.path.dirname(os.path.dirname(__file__)))
        accelerator.print("import network module:", args.network_module)
        network_module = importlib.import_module(args.network_module)
        net_kwargs = dict(net_arg.split("=", 1) for net_arg in args.network_args or [])
        network = network_module.create_network(
            1.0, args.network_dim, args.network_alpha, vae, text_encoder, unet, **net_kwargs
        )
        if network is None:
            return None
        network.apply_to(text_encoder, unet, train_text_encoder, train_unet)
        if args.network_weights is not None:
            info = network.load_weights(args.network_weights)
            accelerator.print(f"load network weights from {args.network_weights}: {info}")
        if args.gradient_checkpointing:
            unet.enable_gradient_checkpointing()
            network.enable_gradient_checkpointing()
        return network

    def prepare_unet_with_accelerator(self, args, accelerator, unet):
        return prepared_frozen(accelerator, unet)

    def prepare_text_encoders(self, args, accelerator, text_encoders):
        flags = self.get_text_encoders_train_flags(args, text_encoders)
        return [prepared_frozen(accelerator, t) if flag else t for t, flag in zip(text_encoders, flags, strict=True)]

    def print_plan(self, args, accelerator, train_dataset_group, num_batches: int, num_train_epochs: int) -> None:
        """Print how the steps of the training come about."""
        accelerator.print(f"  num train images * repeats: {train_dataset_group.num_train_images}")
        accelerator.print(f"  num reg images: {train_dataset_group.num_reg_images}")
        accelerator.print(f"  num batches per epoch: {num_batches}")
        accelerator.print(f"  num epochs: {num_train_epochs}")
        batch_sizes = ", ".join(str(dataset.batch_size) for dataset in train_dataset_group.datasets)
        accelerator.print(f"  batch size per device: {batch_sizes}")
        accelerator.print(f"  gradient accumulation steps = {args.gradient_accumulation_steps}")

    def make_metadata(self, args: argparse.Namespace, session_id: int, training_started_at: float) -> dict[str, str]:
        """Describe the training for the header of its files; a model file that exists is hashed."""
        metadata = {
            "ss_session_id": session_id,
            "ss_training_started_at": training_started_at,
            "ss_output_name": args.output_name,
            "ss_learning_rate": args.learning_rate,
            "ss_network_module": args.network_module,
            "ss_network_dim": args.network_dim,
            "ss_network_alpha": args.network_alpha,
            "ss_max_train_steps": args.max_train_steps,
            "ss_seed": args.seed,
        }
        self.update_metadata(metadata, args)
        if args.pretrained_model_name_or_path is not None:
            sd_model_name = args.pretrained_model_name_or_path
            if os.path.exists(sd_model_name):
                metadata["ss_new_sd_model_hash"] = train_util.calculate_sha256(sd_model_name)
                sd_model_name = os.path.basename(sd_model_name)
            metadata["ss_sd_model_name"] = sd_model_name
        return {k: str(v) for k, v in metadata.items()}

    def process_batch(
        self,
        batch,
        text_encoders,
        unet,
        network,
        vae,
        noise_scheduler,
        vae_dtype,
        weight_dtype,
        accelerator,
        args,
        text_encoding_strategy,
        tokenize_strategy,
        is_train=True,
        train_text_encoder=True,
    ) -> torch.Tensor:
        with torch.no_grad():
            if batch["latents"] is not None:
                latents = batch["latents"].to(accelerator.device)
            else:
                latents = self.encode_images_to_latents(args, vae, batch["images"].to(accelerator.device, vae_dtype))

        text_encoder_conds = batch["text_encoder_outputs_list"] or []
        if len(text_encoder_conds) == 0 or text_encoder_conds[0] is None or train_text_encoder:
            with torch.set_grad_enabled(is_train and train_text_encoder), accelerator.autocast():
                encoded_text_encoder_conds = text_encoding_strategy.encode_tokens(
                    tokenize_strategy,
                    self.get_models_for_text_encoding(args, accelerator, text_encoders),
                    [ids.to(accelerator.device) for ids in batch["input_ids_list"]],
                )
            if len(text_encoder_conds) == 0:
                text_encoder_conds = encoded_text_encoder_conds
            for i, encoded in enumerate(encoded_text_encoder_conds):
                if encoded is not None:
                    text_encoder_conds[i] = encoded

        noise_pred, target, _, weighting = self.get_noise_pred_and_target(
            args, accelerator, noise_scheduler, latents, batch, text_encoder_conds, unet, is_train=is_train
        )
        loss = train_util.conditional_loss(noise_pred.float(), target.float(), args.loss_type, args.huber_c)
        if weighting is not None:
            loss = loss * weighting
        loss = loss.mean(dim=list(range(1, loss.ndim))) * batch["loss_weights"]
        return loss.mean()
