"""How captions become tokens and vectors, and how latents are kept on disk; one strategy of each kind is current."""

import logging
import os
from typing import Any, ClassVar

import numpy as np
import torch
from library.buckets import Size
from PIL import Image

logger = logging.getLogger(__name__)


class CurrentStrategy:
    """Keeps, for each kind of strategy, the one that is in use in this process."""

    _current: ClassVar[dict[type, Any]] = {}

    @classmethod
    def set_strategy(cls, strategy) -> None:
        if cls._current.get(cls) is not None and strategy is not None:
            logger.debug("%s is set again", cls.__name__)
        cls._current[cls] = strategy

    @classmethod
    def get_strategy(cls):
        return cls._current.get(cls)


class TokenizeStrategy(CurrentStrategy):
    """Turns captions into numbers."""

    def tokenize(self, text: str | list[str]) -> list[torch.Tensor]:
        raise NotImplementedError


class TextEncodingStrategy(CurrentStrategy):
    """Turns numbers into vectors."""

    def encode_tokens(self, tokenize_strategy: TokenizeStrategy, models: list[Any], tokens: list[torch.Tensor]):
        raise NotImplementedError


class TextEncoderOutputsCachingStrategy(CurrentStrategy):
    """Keeps the vectors of captions, in memory or on disk."""

    def __init__(
        self,
        cache_to_disk: bool,
        batch_size: int | None,
        skip_disk_cache_validity_check: bool,
        is_partial: bool = False,
    ) -> None:
        self.cache_to_disk = cache_to_disk
        self.batch_size = batch_size
        self.skip_disk_cache_validity_check = skip_disk_cache_validity_check
        self.is_partial = is_partial

    def get_outputs_npz_path(self, image_abs_path: str) -> str:
        raise NotImplementedError

    def load_outputs_npz(self, npz_path: str) -> list[np.ndarray]:
        raise NotImplementedError

    def is_disk_cached_outputs_expected(self, npz_path: str) -> bool:
        raise NotImplementedError

    def cache_batch_outputs(self, tokenize_strategy, models, text_encoding_strategy, infos) -> None:
        raise NotImplementedError


def trim_and_resize(image: np.ndarray, reso: Size, resized_size: Size):
    """Scale the picture to cover `reso` and cut the middle out: (image, original size, crop box)."""
    original_size = (image.shape[1], image.shape[0])
    if original_size != tuple(resized_size):
        image = np.array(Image.fromarray(image).resize(resized_size, Image.Resampling.BICUBIC))
    left, top = (image.shape[1] - reso[0]) // 2, (image.shape[0] - reso[1]) // 2
    crop_ltrb = (left, top, left + reso[0], top + reso[1])
    return image[top : top + reso[1], left : left + reso[0]], original_size, crop_ltrb


def image_to_tensor(image: np.ndarray) -> torch.Tensor:
    """Turn (height, width, rgb) in 0..255 into (rgb, height, width) in -1..1."""
    return torch.from_numpy(image[:, :, :3].astype(np.float32) / 127.5 - 1.0).permute(2, 0, 1).contiguous()


class LatentsCachingStrategy(CurrentStrategy):
    """Keeps the latents of pictures, in memory or on disk."""

    def __init__(self, cache_to_disk: bool, batch_size: int, skip_disk_cache_validity_check: bool) -> None:
        self.cache_to_disk = cache_to_disk
        self.batch_size = batch_size
        self.skip_disk_cache_validity_check = skip_disk_cache_validity_check

    def get_latents_npz_path(self, absolute_path: str, image_size: Size) -> str:
        raise NotImplementedError

    def is_disk_cached_latents_expected(self, bucket_reso, npz_path, flip_aug, alpha_mask) -> bool:
        raise NotImplementedError

    def cache_batch_latents(self, model, image_infos, flip_aug, alpha_mask, random_crop) -> None:
        raise NotImplementedError

    def _default_is_disk_cached_latents_expected(
        self,
        latents_stride: int,
        bucket_reso: Size,
        npz_path: str,
        flip_aug: bool,
        apply_alpha_mask: bool,
        multi_resolution: bool = False,
    ) -> bool:
        if not self.cache_to_disk:
            return False
        if not os.path.exists(npz_path):
            return False
        if self.skip_disk_cache_validity_check:
            return True

        expected_latents_size = (bucket_reso[1] // latents_stride, bucket_reso[0] // latents_stride)
        key_reso_suffix = f"_{expected_latents_size[0]}x{expected_latents_size[1]}" if multi_resolution else ""

        try:
            npz = np.load(npz_path)
            if "latents" + key_reso_suffix not in npz:
                return False
            if flip_aug and "latents_flipped" + key_reso_suffix not in npz:
                return False
            if apply_alpha_mask and "alpha_mask" + key_reso_suffix not in npz:
                return False
        except Exception as e:
            logger.error("Error loading file: %s", npz_path)
            raise e

        return True

    def _default_cache_batch_latents(
        self, encode_by_vae, image_infos, flip_aug: bool, apply_alpha_mask: bool, multi_resolution: bool = False
    ) -> None:
        """Encode pictures of one size and keep the latents; a mask is kept at the latents' size."""
        trimmed = [trim_and_resize(info.image, info.bucket_reso, info.resized_size) for info in image_infos]
        img_tensors = torch.stack([image_to_tensor(image) for image, _, _ in trimmed])
        with torch.no_grad():
            latents_tensors = encode_by_vae(img_tensors)
            flipped_latents = encode_by_vae(torch.flip(img_tensors, dims=[3])) if flip_aug else [None] * len(trimmed)

        for info, (image, original_size, crop_ltrb), latents, flipped in zip(
            image_infos, trimmed, latents_tensors, flipped_latents, strict=True
        ):
            alpha_mask = None
            if apply_alpha_mask:
                alpha = image[:, :, 3] if image.shape[2] == 4 else np.full(image.shape[:2], 255, np.uint8)
                alpha_mask = torch.from_numpy(alpha.astype(np.float32) / 255.0)
            if self.cache_to_disk:
                suffix = f"_{latents.shape[1]}x{latents.shape[2]}" if multi_resolution else ""
                self.save_latents_to_disk(
                    info.latents_npz, latents, original_size, crop_ltrb, flipped, alpha_mask, key_reso_suffix=suffix
                )
            else:
                info.latents_original_size = original_size
                info.latents_crop_ltrb = crop_ltrb
                info.latents, info.latents_flipped, info.alpha_mask = latents, flipped, alpha_mask

    def load_latents_from_disk(self, npz_path: str, bucket_reso: Size):
        return self._default_load_latents_from_disk(None, npz_path, bucket_reso)

    def _default_load_latents_from_disk(self, latents_stride: int | None, npz_path: str, bucket_reso: Size):
        """Read (latents, original size, crop box, flipped latents, mask); every key access reads from disk."""
        if latents_stride is None:
            key_reso_suffix = ""
        else:
            latents_size = (bucket_reso[1] // latents_stride, bucket_reso[0] // latents_stride)
            key_reso_suffix = f"_{latents_size[0]}x{latents_size[1]}"

        npz = np.load(npz_path)
        if "latents" + key_reso_suffix not in npz:
            raise ValueError(f"latents{key_reso_suffix} not found in {npz_path}")

        latents = npz["latents" + key_reso_suffix]
        original_size = npz["original_size" + key_reso_suffix].tolist()
        crop_ltrb = npz["crop_ltrb" + key_reso_suffix].tolist()
        # fmt: off
        flipped_latents = npz["latents_flipped" + key_reso_suffix] if "latents_flipped" + key_reso_suffix in npz else None  # noqa: SIM401, E501
        alpha_mask = npz["alpha_mask" + key_reso_suffix] if "alpha_mask" + key_reso_suffix in npz else None  # noqa: SIM401
        # fmt: on
        return latents, original_size, crop_ltrb, flipped_latents, alpha_mask

    def save_latents_to_disk(
        self,
        npz_path,
        latents_tensor,
        original_size,
        crop_ltrb,
        flipped_latents_tensor=None,
        alpha_mask=None,
        key_reso_suffix="",
    ):
        """Add one size to the file, which is read whole and then written in place."""
        kwargs = {}

        if os.path.exists(npz_path):
            npz = np.load(npz_path)
            for key in npz.files:
                kwargs[key] = npz[key]

        kwargs["latents" + key_reso_suffix] = latents_tensor.float().cpu().numpy()
        kwargs["original_size" + key_reso_suffix] = np.array(original_size)
        kwargs["crop_ltrb" + key_reso_suffix] = np.array(crop_ltrb)
        if flipped_latents_tensor is not None:
            kwargs["latents_flipped" + key_reso_suffix] = flipped_latents_tensor.float().cpu().numpy()
        if alpha_mask is not None:
            kwargs["alpha_mask" + key_reso_suffix] = alpha_mask.float().cpu().numpy()
        np.savez(npz_path, **kwargs)
