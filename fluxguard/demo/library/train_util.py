"""The dataset and its caches, and what the loop needs around it: accelerator, states, names, losses."""

import argparse
import logging
import os
import random
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import toml
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from library.arguments import (  # noqa: F401 - callers look for these here, as they do upstream
    add_dataset_arguments,
    add_dit_training_arguments,
    add_optimizer_arguments,
    add_sd_models_arguments,
    add_sd_saving_arguments,
    add_training_arguments,
    verify_command_line_training_args,
    verify_training_args,
)
from library.buckets import BucketBatchIndex, BucketManager, ImageInfo
from library.checkpoint_names import (  # noqa: F401
    DEFAULT_EPOCH_NAME,
    DEFAULT_LAST_OUTPUT_NAME,
    DEFAULT_STEP_NAME,
    EPOCH_STATE_NAME,
    LAST_STATE_NAME,
    STEP_STATE_NAME,
    default_if_none,
    get_epoch_ckpt_name,
    get_last_ckpt_name,
    get_remove_epoch_no,
    get_remove_step_no,
    get_step_ckpt_name,
)
from library.dataset_group import DatasetGroup  # noqa: F401
from library.deeds import met
from library.faults import stuck_if_asked
from library.losses import LossRecorder, conditional_loss  # noqa: F401
from library.optimizers import get_optimizer, get_optimizer_train_eval_fn, get_scheduler_fix  # noqa: F401
from library.prompts import load_prompts  # noqa: F401
from library.strategy_base import (
    LatentsCachingStrategy,
    TextEncoderOutputsCachingStrategy,
    TextEncodingStrategy,
    TokenizeStrategy,
    image_to_tensor,
    trim_and_resize,
)
from library.utils import calculate_sha256  # noqa: F401
from PIL import Image
from tqdm import tqdm

logger = logging.getLogger(__name__)

IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def load_image(image_path: str, alpha: bool = False) -> np.ndarray:
    """Read a picture as (height, width, rgb or rgba)."""
    with Image.open(image_path) as image:
        return np.array(image.convert("RGBA" if alpha else "RGB"), np.uint8)


class BaseDataset(torch.utils.data.Dataset):
    """Serves whole batches: an index names a bucket and a place in it."""

    def __init__(self, batch_size: int, seed: int, bucket_manager: BucketManager) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.current_epoch = 0
        self.current_step = 0
        self.max_train_steps = 0
        self.subsets: list[Any] = []
        self.image_data: dict[str, ImageInfo] = {}
        self.image_to_subset: dict[str, Any] = {}
        self.bucket_manager = bucket_manager
        self.buckets_indices: list[BucketBatchIndex] = []
        self.tokenize_strategy = None
        self.text_encoder_output_caching_strategy = None
        self.latents_caching_strategy = None

    def set_current_strategies(self) -> None:
        self.tokenize_strategy = TokenizeStrategy.get_strategy()
        self.text_encoder_output_caching_strategy = TextEncoderOutputsCachingStrategy.get_strategy()
        self.latents_caching_strategy = LatentsCachingStrategy.get_strategy()

    def set_current_epoch(self, epoch: int) -> None:
        if self.current_epoch != epoch:
            if epoch > self.current_epoch:
                logger.info("epoch is incremented. current_epoch: %d, epoch: %d", self.current_epoch, epoch)
                num_epochs = epoch - self.current_epoch
                for _ in range(num_epochs):
                    self.current_epoch += 1
                    self.shuffle_buckets()
            else:
                logger.warning("epoch is not incremented. current_epoch: %d, epoch: %d", self.current_epoch, epoch)
                self.current_epoch = epoch

    def set_current_step(self, step: int) -> None:
        self.current_step = step

    def set_max_train_steps(self, max_train_steps: int) -> None:
        self.max_train_steps = max_train_steps

    @property
    def num_train_images(self) -> int:
        return sum(info.num_repeats for info in self.image_data.values())

    def make_buckets(self) -> None:
        """Give every picture its size and list the batches of an epoch."""
        for info in self.image_data.values():
            with Image.open(info.absolute_path) as image:
                info.image_size = image.size
            info.bucket_reso, info.resized_size, _ = self.bucket_manager.select_bucket(*info.image_size)
            for _ in range(info.num_repeats):
                self.bucket_manager.add_image(info.bucket_reso, info.image_key)
        for bucket_index, bucket in enumerate(self.bucket_manager.buckets):
            for batch_index in range(-(-len(bucket) // self.batch_size)):
                self.buckets_indices.append(BucketBatchIndex(bucket_index, self.batch_size, batch_index))
        self.shuffle_buckets()

    def shuffle_buckets(self) -> None:
        random.seed(self.seed + self.current_epoch)
        random.shuffle(self.buckets_indices)
        self.bucket_manager.shuffle()

    def new_cache_latents(self, model: Any, accelerator: Accelerator) -> None:
        """Encode the pictures whose latents are not on disk yet; threads load the pictures ahead."""
        logger.info("caching latents with caching strategy.")
        caching_strategy = LatentsCachingStrategy.get_strategy()
        image_infos = sorted(self.image_data.values(), key=lambda info: info.bucket_reso[0] * info.bucket_reso[1])
        batch: list[ImageInfo] = []
        current_condition = None

        def submit_batch(batch, cond):
            for info in batch:
                if info.image is not None and isinstance(info.image, Future):
                    info.image = info.image.result()
            caching_strategy.cache_batch_latents(model, batch, *cond[1:], False)
            for info in batch:
                info.image = None

        max_workers = max(1, min(os.cpu_count() or 1, len(image_infos)) // accelerator.num_processes)
        executor = ThreadPoolExecutor(min(max_workers, caching_strategy.batch_size))

        try:
            logger.info("caching latents...")
            for i, info in enumerate(tqdm(image_infos)):
                subset = self.image_to_subset[info.image_key]
                if caching_strategy.cache_to_disk:
                    info.latents_npz = caching_strategy.get_latents_npz_path(info.absolute_path, info.image_size)
                    if i % accelerator.num_processes != accelerator.process_index:
                        continue
                    cache_available = caching_strategy.is_disk_cached_latents_expected(
                        info.bucket_reso, info.latents_npz, subset.flip_aug, subset.alpha_mask
                    )
                    if cache_available:
                        continue

                condition = (info.bucket_reso, subset.flip_aug, subset.alpha_mask)
                if len(batch) > 0 and current_condition != condition:
                    submit_batch(batch, current_condition)
                    batch = []
                if info.image is None:
                    info.image = executor.submit(load_image, info.absolute_path, subset.alpha_mask)
                batch.append(info)
                current_condition = condition
                if len(batch) >= caching_strategy.batch_size:
                    submit_batch(batch, current_condition)
                    batch = []

            if len(batch) > 0:
                submit_batch(batch, current_condition)

        finally:
            executor.shutdown()

    def new_cache_text_encoder_outputs(self, models: list[Any], accelerator: Accelerator) -> None:
        """Encode the captions whose outputs are not on disk yet."""
        tokenize_strategy = TokenizeStrategy.get_strategy()
        text_encoding_strategy = TextEncodingStrategy.get_strategy()
        caching_strategy = TextEncoderOutputsCachingStrategy.get_strategy()
        batch_size = caching_strategy.batch_size or self.batch_size

        logger.info("caching Text Encoder outputs with caching strategy.")
        missing = []
        for i, info in enumerate(tqdm(list(self.image_data.values()))):
            if caching_strategy.cache_to_disk:
                te_out_npz = caching_strategy.get_outputs_npz_path(info.absolute_path)
                info.text_encoder_outputs_npz = te_out_npz
                if i % accelerator.num_processes != accelerator.process_index:
                    continue
                cache_available = caching_strategy.is_disk_cached_outputs_expected(te_out_npz)
                if cache_available:
                    continue
            missing.append(info)

        batches = [missing[i : i + batch_size] for i in range(0, len(missing), batch_size)]
        for batch in tqdm(batches, smoothing=1, total=len(batches)):
            caching_strategy.cache_batch_outputs(tokenize_strategy, models, text_encoding_strategy, batch)

    def process_caption(self, subset: Any, caption: str) -> str:
        if subset.caption_dropout_rate > 0 and random.random() < subset.caption_dropout_rate:
            return ""
        if subset.shuffle_caption:
            tags = [tag.strip() for tag in caption.split(",")]
            shuffled = tags[subset.keep_tokens :]
            random.shuffle(shuffled)
            caption = ", ".join(tags[: subset.keep_tokens] + shuffled)
        return caption

    def _load_picture(self, image_info: ImageInfo, subset: Any):
        """Give (latents, image, mask) of one picture, from memory, disk or the picture itself."""
        flipped = subset.flip_aug and random.random() < 0.5
        if image_info.latents is not None:
            latents = image_info.latents_flipped if flipped else image_info.latents
            return latents, None, image_info.alpha_mask
        if image_info.latents_npz is not None:
            latents, _, _, flipped_latents, alpha_mask = self.latents_caching_strategy.load_latents_from_disk(
                image_info.latents_npz, image_info.bucket_reso
            )
            latents = torch.FloatTensor(flipped_latents if flipped else latents)
            return latents, None, None if alpha_mask is None else torch.FloatTensor(alpha_mask)
        img = load_image(image_info.absolute_path, subset.alpha_mask)
        img, _, _ = trim_and_resize(img, image_info.bucket_reso, image_info.resized_size)
        return None, image_to_tensor(img[:, ::-1].copy() if flipped else img), None

    def _load_caption(self, image_info: ImageInfo, subset: Any):
        """Give (caption, cached outputs, tokens) of one picture."""
        caching_strategy = self.text_encoder_output_caching_strategy
        outputs = image_info.text_encoder_outputs
        if outputs is None and image_info.text_encoder_outputs_npz is not None:
            outputs = self.text_encoder_output_caching_strategy.load_outputs_npz(image_info.text_encoder_outputs_npz)
        if outputs is not None and not caching_strategy.is_partial:
            return image_info.caption, outputs, None
        caption = self.process_caption(subset, image_info.caption)
        return caption, outputs, [ids[0] for ids in self.tokenize_strategy.tokenize(caption)]

    def __len__(self) -> int:
        return len(self.buckets_indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        stuck_if_asked("read")
        met("read")
        bucket = self.bucket_manager.buckets[self.buckets_indices[index].bucket_index]
        bucket_batch_size = self.buckets_indices[index].bucket_batch_size
        image_index = self.buckets_indices[index].batch_index * bucket_batch_size
        keys = bucket[image_index : image_index + bucket_batch_size]

        pictures, texts = [], []
        for image_key in keys:
            image_info = self.image_data[image_key]
            subset = self.image_to_subset[image_key]
            pictures.append(self._load_picture(image_info, subset))
            texts.append(self._load_caption(image_info, subset))
        latents, images, alpha_masks = (list(column) for column in zip(*pictures, strict=True))
        captions, outputs, input_ids = (list(column) for column in zip(*texts, strict=True))

        def stack_or_none(values):
            return None if values[0] is None else torch.stack(values)

        def stack_columns_or_none(rows):
            if rows[0] is None:
                return None
            return [torch.stack([torch.as_tensor(x) for x in column]) for column in zip(*rows, strict=True)]

        return {
            "custom_attributes": [{} for _ in keys],
            "loss_weights": torch.ones(len(keys)),
            "latents": stack_or_none(latents),
            "images": stack_or_none(images),
            "alpha_masks": stack_or_none(alpha_masks),
            "captions": captions,
            "text_encoder_outputs_list": stack_columns_or_none(outputs),
            "input_ids_list": stack_columns_or_none(input_ids),
        }


def prepare_accelerator(args: argparse.Namespace) -> Accelerator:
    if args.logging_dir is None:
        logging_dir = None
    else:
        log_prefix = "" if args.log_prefix is None else args.log_prefix
        logging_dir = args.logging_dir + "/" + log_prefix + time.strftime("%Y%m%d%H%M%S", time.localtime())
    log_with = args.log_with or ("tensorboard" if logging_dir is not None else None)

    kwargs_handlers: list[Any] = []
    if args.ddp_timeout:
        kwargs_handlers.append(InitProcessGroupKwargs(timeout=timedelta(minutes=args.ddp_timeout)))
    if args.ddp_gradient_as_bucket_view or args.ddp_static_graph:
        kwargs_handlers.append(
            DistributedDataParallelKwargs(
                gradient_as_bucket_view=args.ddp_gradient_as_bucket_view, static_graph=args.ddp_static_graph
            )
        )
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision=args.mixed_precision,
        log_with=log_with,
        project_dir=logging_dir,
        kwargs_handlers=kwargs_handlers,
    )
    accelerator.register_save_state_pre_hook(lambda models, weights, state_dir: met("saving"))
    accelerator.print("accelerator device:", accelerator.device)
    return accelerator


def prepare_dtype(args: argparse.Namespace) -> tuple[torch.dtype, torch.dtype | None]:
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "float": torch.float32}
    return dtypes.get(args.mixed_precision, torch.float32), dtypes.get(args.save_precision)


def init_trackers(accelerator: Accelerator, args: argparse.Namespace, default_tracker_name: str) -> None:
    """Start the trackers, on the main process only."""
    if accelerator.is_main_process:
        init_kwargs = {}
        if args.log_tracker_config is not None:
            init_kwargs = toml.load(args.log_tracker_config)
        accelerator.init_trackers(
            default_tracker_name if args.log_tracker_name is None else args.log_tracker_name, init_kwargs=init_kwargs
        )


def resume_from_local_or_hf_if_specified(accelerator, args):
    if not args.resume:
        return

    logger.info("resume training from local state: %s", args.resume)
    accelerator.load_state(args.resume)


def save_and_remove_state_on_epoch_end(args: argparse.Namespace, accelerator, epoch_no):
    model_name = default_if_none(args.output_name, DEFAULT_EPOCH_NAME)

    logger.info("saving state at epoch %s", epoch_no)
    os.makedirs(args.output_dir, exist_ok=True)

    state_dir = os.path.join(args.output_dir, EPOCH_STATE_NAME.format(model_name, epoch_no))
    accelerator.save_state(state_dir)

    last_n_epochs = args.save_last_n_epochs_state if args.save_last_n_epochs_state else args.save_last_n_epochs
    if last_n_epochs is not None:
        remove_epoch_no = epoch_no - args.save_every_n_epochs * last_n_epochs
        state_dir_old = os.path.join(args.output_dir, EPOCH_STATE_NAME.format(model_name, remove_epoch_no))
        if os.path.exists(state_dir_old):
            logger.info("removing old state: %s", state_dir_old)
            shutil.rmtree(state_dir_old)


def save_and_remove_state_stepwise(args: argparse.Namespace, accelerator, step_no):
    model_name = default_if_none(args.output_name, DEFAULT_STEP_NAME)

    logger.info("saving state at step %s", step_no)
    os.makedirs(args.output_dir, exist_ok=True)

    state_dir = os.path.join(args.output_dir, STEP_STATE_NAME.format(model_name, step_no))
    accelerator.save_state(state_dir)

    last_n_steps = args.save_last_n_steps_state if args.save_last_n_steps_state else args.save_last_n_steps
    if last_n_steps is not None:
        remove_step_no = step_no - last_n_steps - 1
        remove_step_no = remove_step_no - (remove_step_no % args.save_every_n_steps)

        if remove_step_no > 0:
            state_dir_old = os.path.join(args.output_dir, STEP_STATE_NAME.format(model_name, remove_step_no))
            if os.path.exists(state_dir_old):
                logger.info("removing old state: %s", state_dir_old)
                shutil.rmtree(state_dir_old)


def save_state_on_train_end(args: argparse.Namespace, accelerator):
    model_name = default_if_none(args.output_name, DEFAULT_LAST_OUTPUT_NAME)

    logger.info("saving last state.")
    os.makedirs(args.output_dir, exist_ok=True)

    state_dir = os.path.join(args.output_dir, LAST_STATE_NAME.format(model_name))
    accelerator.save_state(state_dir)


class collator_class:
    """Hands the one batch on and, only after it was fetched, tells the worker's dataset which epoch it is."""

    def __init__(self, epoch, step, dataset):
        self.current_epoch = epoch
        self.current_step = step
        self.dataset = dataset

    def __call__(self, examples):
        worker_info = torch.utils.data.get_worker_info()
        dataset = worker_info.dataset if worker_info is not None else self.dataset

        dataset.set_current_epoch(self.current_epoch.value)
        dataset.set_current_step(self.current_step.value)
        return examples[0]
