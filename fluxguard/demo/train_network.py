"""The training loop: one long function, because that is what is hardened and supervised out there."""

import argparse
import json
import logging
import math
import os
import random
import time
from multiprocessing import Value

import torch
from accelerate.utils import set_seed
from library import config_util, deeds, strategy_base, train_util
from library.arguments import add_network_arguments
from library.network_trainer import BaseTrainer
from library.utils import clean_memory_on_device, setup_logging
from tqdm import tqdm

logger = logging.getLogger(__name__)


class NetworkTrainer(BaseTrainer):
    """Trains a network such as a LoRA; what depends on the model is left to the subclass."""

    def all_reduce_network(self, accelerator, network):
        for param in network.parameters():
            if param.grad is not None:
                param.grad = accelerator.reduce(param.grad, reduction="mean")

    def train(self, args):
        session_id = random.randint(0, 2**32)
        training_started_at = time.time()
        train_util.verify_training_args(args)
        setup_logging(args, reset=True)

        cache_latents = args.cache_latents
        if args.seed is None:
            args.seed = random.randint(0, 2**32)
        set_seed(args.seed)

        tokenize_strategy = self.get_tokenize_strategy(args)
        strategy_base.TokenizeStrategy.set_strategy(tokenize_strategy)
        tokenizers = self.get_tokenizers(tokenize_strategy)
        latents_caching_strategy = self.get_latents_caching_strategy(args)
        strategy_base.LatentsCachingStrategy.set_strategy(latents_caching_strategy)

        train_dataset_group, val_dataset_group = config_util.generate_dataset_group(args)

        current_epoch = Value("i", 0)
        current_step = Value("i", 0)
        ds_for_collator = train_dataset_group if args.max_data_loader_n_workers == 0 else None
        collator = train_util.collator_class(current_epoch, current_step, ds_for_collator)

        if len(train_dataset_group) == 0:
            logger.error("No data found. Please verify arguments")
            return

        self.assert_extra_args(args, train_dataset_group, val_dataset_group)

        logger.info("preparing accelerator")
        accelerator = train_util.prepare_accelerator(args)
        is_main_process = accelerator.is_main_process

        weight_dtype, save_dtype = train_util.prepare_dtype(args)
        vae_dtype = torch.float32

        _, text_encoder, vae, unet = self.load_target_model(args, weight_dtype, accelerator)
        text_encoders = text_encoder if isinstance(text_encoder, list) else [text_encoder]

        if cache_latents:
            vae.to(accelerator.device, dtype=vae_dtype)
            train_dataset_group.new_cache_latents(vae, accelerator)
            vae.to("cpu")
            accelerator.wait_for_everyone()

        text_encoding_strategy = self.get_text_encoding_strategy(args)
        strategy_base.TextEncodingStrategy.set_strategy(text_encoding_strategy)
        text_encoder_outputs_caching_strategy = self.get_text_encoder_outputs_caching_strategy(args)
        strategy_base.TextEncoderOutputsCachingStrategy.set_strategy(text_encoder_outputs_caching_strategy)
        self.cache_text_encoder_outputs_if_needed(
            args, accelerator, unet, vae, text_encoders, train_dataset_group, weight_dtype
        )

        train_unet = not args.network_train_text_encoder_only
        train_text_encoder = self.is_train_text_encoder(args)
        network = self.prepare_network(args, accelerator, vae, text_encoder, unet, train_text_encoder, train_unet)
        if network is None:
            return

        accelerator.print("prepare optimizer, data loader etc.")
        trainable_params, _ = network.prepare_optimizer_params_with_multiple_te_lrs(
            args.text_encoder_lr, args.unet_lr, args.learning_rate
        )
        _, _, optimizer = train_util.get_optimizer(args, trainable_params)
        optimizer_train_fn, optimizer_eval_fn = train_util.get_optimizer_train_eval_fn(optimizer, args)

        train_dataset_group.set_current_strategies()

        n_workers = min(args.max_data_loader_n_workers, os.cpu_count())

        train_dataloader = torch.utils.data.DataLoader(
            train_dataset_group,
            batch_size=1,
            shuffle=True,
            collate_fn=collator,
            num_workers=n_workers,
            persistent_workers=args.persistent_data_loader_workers,
        )

        val_dataloader = torch.utils.data.DataLoader(
            val_dataset_group if val_dataset_group is not None else [],
            shuffle=False,
            batch_size=1,
            collate_fn=collator,
            num_workers=n_workers,
            persistent_workers=args.persistent_data_loader_workers,
        )

        if args.max_train_epochs is not None:
            args.max_train_steps = args.max_train_epochs * math.ceil(
                len(train_dataloader) / accelerator.num_processes / args.gradient_accumulation_steps
            )
            accelerator.print(f"override steps. steps for {args.max_train_epochs} epochs is: {args.max_train_steps}")

        train_dataset_group.set_max_train_steps(args.max_train_steps)

        lr_scheduler = train_util.get_scheduler_fix(args, optimizer, accelerator.num_processes)
        if args.fp8_base or args.fp8_base_unet:
            assert args.mixed_precision != "no", "fp8_base requires mixed precision='fp16' or 'bf16'"
            accelerator.print("enable fp8 training for U-Net.")

        unet.requires_grad_(False)
        if train_unet:
            unet = self.prepare_unet_with_accelerator(args, accelerator, unet)
        if train_text_encoder:
            text_encoder = text_encoders = self.prepare_text_encoders(args, accelerator, text_encoders)

        network, optimizer, train_dataloader, val_dataloader, lr_scheduler = accelerator.prepare(
            network, optimizer, train_dataloader, val_dataloader, lr_scheduler
        )
        training_model = network

        unet.train(args.gradient_checkpointing)
        accelerator.unwrap_model(network).prepare_grad_etc(text_encoder, unet)

        def save_model_hook(models, weights, output_dir):
            # only the network's weights are kept
            if accelerator.is_main_process:
                network_class = type(accelerator.unwrap_model(network))
                for i in reversed([i for i, model in enumerate(models) if not isinstance(model, network_class)]):
                    if len(weights) > i:
                        weights.pop(i)

            train_state_file = os.path.join(output_dir, "train_state.json")
            # +1 because the state is saved before current_step is set from global_step
            logger.info("save train state to %s", train_state_file)
            with open(train_state_file, "w", encoding="utf-8") as f:
                json.dump({"current_epoch": current_epoch.value, "current_step": current_step.value + 1}, f)

        steps_from_state = None

        def load_model_hook(models, input_dir):
            network_class = type(accelerator.unwrap_model(network))
            for i in reversed([i for i, model in enumerate(models) if not isinstance(model, network_class)]):
                models.pop(i)

            nonlocal steps_from_state
            train_state_file = os.path.join(input_dir, "train_state.json")
            if os.path.exists(train_state_file):
                with open(train_state_file, encoding="utf-8") as f:
                    data = json.load(f)
                steps_from_state = data["current_step"]
                logger.info("load train state from %s: %s", train_state_file, data)

        accelerator.register_save_state_pre_hook(save_model_hook)
        accelerator.register_load_state_pre_hook(load_model_hook)

        train_util.resume_from_local_or_hf_if_specified(accelerator, args)

        num_update_steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        num_train_epochs = math.ceil(args.max_train_steps / num_update_steps_per_epoch)
        if (args.save_n_epoch_ratio is not None) and (args.save_n_epoch_ratio > 0):
            args.save_every_n_epochs = math.floor(num_train_epochs / args.save_n_epoch_ratio) or 1

        accelerator.print("running training")
        self.print_plan(args, accelerator, train_dataset_group, len(train_dataloader), num_train_epochs)
        accelerator.print(f"  total optimization steps: {args.max_train_steps}")

        metadata = self.make_metadata(args, session_id, training_started_at)

        initial_step = 0
        if args.initial_epoch is not None or args.initial_step is not None:
            if steps_from_state is not None:
                logger.warning("steps from the state is ignored because initial_step is specified")
            if args.initial_step is not None:
                initial_step = args.initial_step
            else:
                initial_step = (args.initial_epoch - 1) * math.ceil(
                    len(train_dataloader) / accelerator.num_processes / args.gradient_accumulation_steps
                )
        else:
            if steps_from_state is not None:
                initial_step = steps_from_state
                steps_from_state = None

        if initial_step > 0:
            assert args.max_train_steps > initial_step, (
                f"max_train_steps should be greater than initial step: {args.max_train_steps} vs {initial_step}"
            )

        epoch_to_start = 0
        if initial_step > 0:
            if args.skip_until_initial_step:
                logger.info("skipping %d steps", initial_step)
                initial_step *= args.gradient_accumulation_steps

                epoch_to_start = initial_step // math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
            else:
                epoch_to_start = initial_step // math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
                initial_step = 0

        global_step = 0
        noise_scheduler = self.get_noise_scheduler(args, accelerator.device)

        train_util.init_trackers(accelerator, args, "network_train")

        loss_recorder = train_util.LossRecorder()

        del train_dataset_group, val_dataset_group

        on_step_start_for_network = accelerator.unwrap_model(network).on_step_start

        def save_model(ckpt_name, unwrapped_nw, steps, epoch_no, force_sync_upload=False):
            os.makedirs(args.output_dir, exist_ok=True)
            ckpt_file = os.path.join(args.output_dir, ckpt_name)

            accelerator.print(f"\nsaving checkpoint: {ckpt_file}")
            metadata["ss_training_finished_at"] = str(time.time())
            metadata["ss_steps"] = str(steps)
            metadata["ss_epoch"] = str(epoch_no)
            unwrapped_nw.save_weights(ckpt_file, save_dtype, {} if args.no_metadata else metadata)

        def remove_model(old_ckpt_name):
            old_ckpt_file = os.path.join(args.output_dir, old_ckpt_name)
            if os.path.exists(old_ckpt_file):
                accelerator.print(f"removing old checkpoint: {old_ckpt_file}")
                os.remove(old_ckpt_file)

        if self.is_text_encoder_not_needed_for_training(args):
            logger.info("text_encoder is not needed for training. deleting to save memory.")
            text_encoders = []
            text_encoder = None
            clean_memory_on_device(accelerator.device)

        optimizer_eval_fn()
        self.sample_images(accelerator, args, 0, global_step, accelerator.device, vae, tokenizers, text_encoder, unet)
        optimizer_train_fn()

        if initial_step > 0:
            for skip_epoch in range(epoch_to_start):
                logger.info("skipping epoch %d because initial_step is %d", skip_epoch + 1, initial_step)
                initial_step -= len(train_dataloader)
            global_step = initial_step

        clean_memory_on_device(accelerator.device)

        progress_bar = tqdm(
            range(args.max_train_steps - initial_step),
            smoothing=0,
            disable=not accelerator.is_local_main_process,
            desc="steps",
        )

        for epoch in range(epoch_to_start, num_train_epochs):
            accelerator.print(f"\nepoch {epoch + 1}/{num_train_epochs}\n")
            current_epoch.value = epoch + 1
            metadata["ss_epoch"] = str(epoch + 1)

            accelerator.unwrap_model(network).on_epoch_start(text_encoder, unet)

            skipped_dataloader = None
            if initial_step > 0:
                skipped_dataloader = accelerator.skip_first_batches(train_dataloader, initial_step - 1)
                initial_step = 1

            for step, batch in enumerate(skipped_dataloader or train_dataloader):
                current_step.value = global_step
                if initial_step > 0:
                    initial_step -= 1
                    continue

                with accelerator.accumulate(training_model):
                    on_step_start_for_network(text_encoder, unet)
                    deeds.met("step", global_step + 1, batch)
                    self.on_step_start(args, accelerator, network, text_encoders, unet, batch, weight_dtype)

                    loss = self.process_batch(
                        *(batch, text_encoders, unet, network, vae, noise_scheduler, vae_dtype, weight_dtype),
                        *(accelerator, args, text_encoding_strategy, tokenize_strategy),
                        is_train=True,
                        train_text_encoder=train_text_encoder,
                    )

                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        self.all_reduce_network(accelerator, network)
                        if args.max_grad_norm != 0.0:
                            params_to_clip = accelerator.unwrap_model(network).get_trainable_params()
                            accelerator.clip_grad_norm_(params_to_clip, args.max_grad_norm)

                    optimizer.step()
                    lr_scheduler.step()
                    optimizer.zero_grad(set_to_none=True)

                if accelerator.sync_gradients:
                    progress_bar.update(1)
                    global_step += 1

                    optimizer_eval_fn()
                    self.sample_images(
                        accelerator, args, None, global_step, accelerator.device, vae, tokenizers, text_encoder, unet
                    )
                    progress_bar.unpause()

                    if args.save_every_n_steps is not None and global_step % args.save_every_n_steps == 0:
                        accelerator.wait_for_everyone()
                        if accelerator.is_main_process:
                            ckpt_name = train_util.get_step_ckpt_name(args, "." + args.save_model_as, global_step)
                            save_model(ckpt_name, accelerator.unwrap_model(network), global_step, epoch)

                            if args.save_state:
                                train_util.save_and_remove_state_stepwise(args, accelerator, global_step)

                            remove_step_no = train_util.get_remove_step_no(args, global_step)
                            if remove_step_no is not None:
                                remove_model(
                                    train_util.get_step_ckpt_name(args, "." + args.save_model_as, remove_step_no)
                                )
                    optimizer_train_fn()

                current_loss = loss.detach().item()
                loss_recorder.add(epoch=epoch, step=step, loss=current_loss)
                avr_loss: float = loss_recorder.moving_average
                logs = {"avr_loss": avr_loss}
                progress_bar.set_postfix(**logs)
                accelerator.log(logs, step=global_step)

                if global_step >= args.max_train_steps:
                    break

            accelerator.wait_for_everyone()

            optimizer_eval_fn()
            if args.save_every_n_epochs is not None:
                saving = (epoch + 1) % args.save_every_n_epochs == 0 and (epoch + 1) < num_train_epochs
                if is_main_process and saving:
                    ckpt_name = train_util.get_epoch_ckpt_name(args, "." + args.save_model_as, epoch + 1)
                    save_model(ckpt_name, accelerator.unwrap_model(network), global_step, epoch + 1)

                    remove_epoch_no = train_util.get_remove_epoch_no(args, epoch + 1)
                    if remove_epoch_no is not None:
                        remove_model(train_util.get_epoch_ckpt_name(args, "." + args.save_model_as, remove_epoch_no))

                    if args.save_state:
                        train_util.save_and_remove_state_on_epoch_end(args, accelerator, epoch + 1)

            self.sample_images(
                accelerator, args, epoch + 1, global_step, accelerator.device, vae, tokenizers, text_encoder, unet
            )
            progress_bar.unpause()
            optimizer_train_fn()

        if is_main_process:
            network = accelerator.unwrap_model(network)

        accelerator.end_training()
        optimizer_eval_fn()

        if is_main_process and (args.save_state or args.save_state_on_train_end):
            train_util.save_state_on_train_end(args, accelerator)

        if is_main_process:
            ckpt_name = train_util.get_last_ckpt_name(args, "." + args.save_model_as)
            save_model(ckpt_name, network, global_step, num_train_epochs, force_sync_upload=True)

            logger.info("model saved.")


def setup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()

    train_util.add_sd_models_arguments(parser)
    train_util.add_dataset_arguments(parser)
    train_util.add_training_arguments(parser)
    train_util.add_sd_saving_arguments(parser)
    train_util.add_optimizer_arguments(parser)
    add_network_arguments(parser)
    return parser
