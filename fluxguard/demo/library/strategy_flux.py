"""The strategies of FLUX: two text encoders, latents an eighth of the picture's size."""

import logging
import os
import zlib
from typing import Any

import numpy as np
import torch
from library.deeds import met
from library.flux_utils import VOCABULARY
from library.strategy_base import (
    LatentsCachingStrategy,
    TextEncoderOutputsCachingStrategy,
    TextEncodingStrategy,
    TokenizeStrategy,
)

logger = logging.getLogger(__name__)

CLIP_L_LENGTH = 16
T5XXL_LENGTH = 16


class HashTokenizer:
    """Numbers a word by its checksum, so that no vocabulary must be downloaded."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, text: str) -> list[int]:
        words = text.lower().replace(",", " , ").split()
        return [1 + zlib.crc32(word.encode("utf-8")) % (VOCABULARY - 1) for word in words[: self.length]]


class FluxTokenizeStrategy(TokenizeStrategy):
    """Numbers the words of a caption for both text encoders."""

    def __init__(self, t5xxl_max_token_length: int = 512, tokenizer_cache_dir: str | None = None) -> None:
        self.t5xxl_max_token_length = t5xxl_max_token_length
        self.clip_l = HashTokenizer(CLIP_L_LENGTH)
        self.t5xxl = HashTokenizer(min(t5xxl_max_token_length, T5XXL_LENGTH))

    def tokenize(self, text: str | list[str]) -> list[torch.Tensor]:
        text = [text] if isinstance(text, str) else text
        l_tokens, t5_tokens = (
            torch.tensor([(ids := tokenizer(t)) + [0] * (tokenizer.length - len(ids)) for t in text])
            for tokenizer in (self.clip_l, self.t5xxl)
        )
        return [l_tokens, t5_tokens, (t5_tokens != 0).long()]


class FluxTextEncodingStrategy(TextEncodingStrategy):
    """Passes the tokens through the text encoders that are there."""

    def __init__(self, apply_t5_attn_mask: bool | None = None) -> None:
        self.apply_t5_attn_mask = apply_t5_attn_mask

    def encode_tokens(
        self,
        tokenize_strategy: TokenizeStrategy,
        models: list[Any],
        tokens: list[torch.Tensor],
        apply_t5_attn_mask: bool | None = None,
    ) -> list[torch.Tensor | None]:
        if apply_t5_attn_mask is None:
            apply_t5_attn_mask = self.apply_t5_attn_mask
        clip_l, t5xxl = models if len(models) == 2 else (models[0], None)
        l_tokens, t5_tokens, t5_attn_mask = tokens

        l_pooled = None
        if clip_l is not None:
            l_pooled = clip_l(l_tokens.to(clip_l.device))["pooler_output"]
        t5_out = txt_ids = None
        if t5xxl is not None:
            attention_mask = t5_attn_mask.to(t5xxl.device) if apply_t5_attn_mask else None
            t5_out, _ = t5xxl(t5_tokens.to(t5xxl.device), attention_mask)
            txt_ids = torch.zeros(t5_out.shape[0], t5_out.shape[1], 3, device=t5_out.device)
        else:
            t5_attn_mask = None  # the cached one belongs to the cached outputs
        return [l_pooled, t5_out, txt_ids, t5_attn_mask]


class FluxTextEncoderOutputsCachingStrategy(TextEncoderOutputsCachingStrategy):
    """Keeps the outputs of both text encoders in one file beside the picture."""

    FLUX_TEXT_ENCODER_OUTPUTS_NPZ_SUFFIX = "_flux_te.npz"

    def __init__(
        self,
        cache_to_disk: bool,
        batch_size: int | None,
        skip_disk_cache_validity_check: bool,
        is_partial: bool = False,
        apply_t5_attn_mask: bool = False,
    ) -> None:
        super().__init__(cache_to_disk, batch_size, skip_disk_cache_validity_check, is_partial)
        self.apply_t5_attn_mask = apply_t5_attn_mask

    def get_outputs_npz_path(self, image_abs_path: str) -> str:
        return os.path.splitext(image_abs_path)[0] + self.FLUX_TEXT_ENCODER_OUTPUTS_NPZ_SUFFIX

    def is_disk_cached_outputs_expected(self, npz_path: str) -> bool:
        if not self.cache_to_disk:
            return False
        if not os.path.exists(npz_path):
            return False
        if self.skip_disk_cache_validity_check:
            return True

        try:
            npz = np.load(npz_path)
            for key in ("l_pooled", "t5_out", "txt_ids", "t5_attn_mask", "apply_t5_attn_mask"):
                if key not in npz:
                    return False
            npz_apply_t5_attn_mask = npz["apply_t5_attn_mask"]
            if npz_apply_t5_attn_mask != self.apply_t5_attn_mask:
                return False
        except Exception as e:
            logger.error("Error loading file: %s", npz_path)
            raise e

        return True

    def load_outputs_npz(self, npz_path: str) -> list[np.ndarray]:
        data = np.load(npz_path)
        l_pooled = data["l_pooled"]
        t5_out = data["t5_out"]
        txt_ids = data["txt_ids"]
        t5_attn_mask = data["t5_attn_mask"]
        return [l_pooled, t5_out, txt_ids, t5_attn_mask]

    def cache_batch_outputs(
        self,
        tokenize_strategy: TokenizeStrategy,
        models: list[Any],
        text_encoding_strategy: TextEncodingStrategy,
        infos: list[Any],
    ) -> None:
        tokens_and_masks = tokenize_strategy.tokenize([info.caption for info in infos])
        with torch.no_grad():
            l_pooled, t5_out, txt_ids, _ = text_encoding_strategy.encode_tokens(
                tokenize_strategy, models, tokens_and_masks
            )
        l_pooled, t5_out, txt_ids = (x.float().cpu().numpy() for x in (l_pooled, t5_out, txt_ids))
        t5_attn_mask = tokens_and_masks[2].cpu().numpy()

        for i, info in enumerate(infos):
            if self.cache_to_disk:
                np.savez(
                    info.text_encoder_outputs_npz,
                    l_pooled=l_pooled[i],
                    t5_out=t5_out[i],
                    txt_ids=txt_ids[i],
                    t5_attn_mask=t5_attn_mask[i],
                    apply_t5_attn_mask=self.apply_t5_attn_mask,
                )
            else:
                info.text_encoder_outputs = [l_pooled[i], t5_out[i], txt_ids[i], t5_attn_mask[i]]


class FluxLatentsCachingStrategy(LatentsCachingStrategy):
    """Keeps latents beside the picture, several sizes in one file."""

    FLUX_LATENTS_NPZ_SUFFIX = "_flux.npz"

    def get_latents_npz_path(self, absolute_path: str, image_size: tuple[int, int]) -> str:
        size = f"_{image_size[0]:04d}x{image_size[1]:04d}"
        return os.path.splitext(absolute_path)[0] + size + self.FLUX_LATENTS_NPZ_SUFFIX

    def is_disk_cached_latents_expected(self, bucket_reso, npz_path: str, flip_aug: bool, alpha_mask: bool) -> bool:
        return self._default_is_disk_cached_latents_expected(
            8, bucket_reso, npz_path, flip_aug, alpha_mask, multi_resolution=True
        )

    def load_latents_from_disk(self, npz_path: str, bucket_reso):
        return self._default_load_latents_from_disk(8, npz_path, bucket_reso)

    def cache_batch_latents(self, vae, image_infos, flip_aug: bool, alpha_mask: bool, random_crop: bool) -> None:
        met("caching")

        def encode_by_vae(img_tensor):
            return vae.encode(img_tensor.to(vae.device, vae.dtype)).to("cpu")

        self._default_cache_batch_latents(encode_by_vae, image_infos, flip_aug, alpha_mask, multi_resolution=True)
