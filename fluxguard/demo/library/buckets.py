"""Which size each picture is trained at, and which pictures make a batch."""

import math
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Size = tuple[int, int]


class BucketBatchIndex(NamedTuple):
    """Names one batch: which bucket, how many pictures a batch of it holds, and which of its batches."""

    bucket_index: int
    bucket_batch_size: int
    batch_index: int


@dataclass
class ImageInfo:
    """What is known about one picture; sizes are (width, height)."""

    image_key: str
    num_repeats: int
    caption: str
    is_reg: bool
    absolute_path: str
    image_size: Size | None = None
    bucket_reso: Size | None = None
    resized_size: Size | None = None
    image: Any = None
    latents: Any = None
    latents_flipped: Any = None
    latents_original_size: Size | None = None
    latents_crop_ltrb: tuple[int, int, int, int] | None = None
    latents_npz: str | None = None
    alpha_mask: Any = None
    text_encoder_outputs: list[Any] | None = None
    text_encoder_outputs_npz: str | None = None
    custom_attributes: dict[str, Any] = field(default_factory=dict)


def make_bucket_resolutions(max_reso: Size, min_size: int, max_size: int, divisible: int) -> list[Size]:
    """List all sizes of about the same area whose sides are multiples of `divisible`."""
    max_area = max_reso[0] * max_reso[1]
    side = int(math.sqrt(max_area)) // divisible * divisible
    resos = {(side, side)}
    for width in range(min_size, max_size + 1, divisible):
        height = min(max_size, max_area // width // divisible * divisible)
        if height >= min_size:
            resos |= {(width, height), (height, width)}
    return sorted(resos)


class BucketManager:
    """Holds the sizes and, for each size in use, the keys of its pictures."""

    def __init__(self, no_upscale: bool, max_reso: Size, min_size: int, max_size: int, reso_steps: int) -> None:
        self.no_upscale = no_upscale
        self.max_reso = max_reso
        self.min_size = min_size
        self.max_size = max_size
        self.reso_steps = reso_steps
        self.predefined_resos: list[Size] = []
        self.resos: list[Size] = []
        self.buckets: list[list[str]] = []

    def make_buckets(self) -> None:
        self.predefined_resos = make_bucket_resolutions(self.max_reso, self.min_size, self.max_size, self.reso_steps)

    def select_bucket(self, image_width: int, image_height: int) -> tuple[Size, Size, float]:
        """Choose the size of the nearest aspect ratio: (size, picture scaled to cover it, error of the ratio)."""
        aspect_ratio = image_width / image_height
        resos = self.predefined_resos or [self.max_reso]
        reso = min(resos, key=lambda r: (abs(r[0] / r[1] - aspect_ratio), r))
        scale = max(reso[0] / image_width, reso[1] / image_height)
        resized_size = (round(image_width * scale), round(image_height * scale))
        return reso, resized_size, reso[0] / reso[1] - aspect_ratio

    def add_image(self, reso: Size, image_key: str) -> None:
        if reso not in self.resos:
            self.resos.append(reso)
            self.buckets.append([])
        self.buckets[self.resos.index(reso)].append(image_key)

    def shuffle(self) -> None:
        for bucket in self.buckets:
            random.shuffle(bucket)
