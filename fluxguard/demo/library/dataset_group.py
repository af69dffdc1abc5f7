"""Several datasets as one."""

import logging
from typing import Any

import torch
from accelerate import Accelerator

logger = logging.getLogger(__name__)


class DatasetGroup(torch.utils.data.ConcatDataset):
    """Passes everything on to its datasets."""

    def __init__(self, datasets: list[Any]) -> None:
        super().__init__(datasets)
        self.image_data = {key: info for dataset in datasets for key, info in dataset.image_data.items()}
        self.num_train_images = sum(dataset.num_train_images for dataset in datasets)
        self.num_reg_images = 0

    def set_current_strategies(self) -> None:
        for dataset in self.datasets:
            dataset.set_current_strategies()

    def new_cache_latents(self, model: Any, accelerator: Accelerator) -> None:
        for i, dataset in enumerate(self.datasets):
            logger.info("[Dataset %d]", i)
            dataset.new_cache_latents(model, accelerator)
        accelerator.wait_for_everyone()

    def new_cache_text_encoder_outputs(self, models: list[Any], accelerator: Accelerator) -> None:
        for i, dataset in enumerate(self.datasets):
            logger.info("[Dataset %d]", i)
            dataset.new_cache_text_encoder_outputs(models, accelerator)
        accelerator.wait_for_everyone()

    def is_text_encoder_output_cacheable(self) -> bool:
        subsets = [subset for dataset in self.datasets for subset in dataset.subsets]
        return not any(subset.caption_dropout_rate > 0 or subset.shuffle_caption for subset in subsets)

    def set_current_epoch(self, epoch: int) -> None:
        for dataset in self.datasets:
            dataset.set_current_epoch(epoch)

    def set_current_step(self, step: int) -> None:
        for dataset in self.datasets:
            dataset.set_current_step(step)

    def set_max_train_steps(self, max_train_steps: int) -> None:
        for dataset in self.datasets:
            dataset.set_max_train_steps(max_train_steps)
