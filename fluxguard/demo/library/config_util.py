"""From dataset.toml to a dataset group."""

import argparse
import glob
import logging
import os
from dataclasses import dataclass
from typing import Any

import toml
from library.buckets import BucketManager, ImageInfo, Size
from library.drawing import draw_dataset
from library.train_util import IMAGE_EXTENSIONS, BaseDataset, DatasetGroup

logger = logging.getLogger(__name__)

MAX_RESOLUTION = 128


@dataclass
class Subset:
    """One folder of pictures and how they are used."""

    image_dir: str
    class_tokens: str | None = None
    num_repeats: int = 1
    caption_extension: str = ".caption"
    keep_tokens: int = 0
    shuffle_caption: bool = False
    caption_dropout_rate: float = 0.0
    flip_aug: bool = False
    alpha_mask: bool = False


def load_user_config(file: str) -> dict[str, Any]:
    with open(file, encoding="utf-8") as f:
        return toml.load(f)


def drawn_config(args: argparse.Namespace) -> dict[str, Any]:
    """Describe the folder given by --train_data_dir, or pictures drawn for this run."""
    image_dir = args.train_data_dir or draw_dataset(os.path.join(args.output_dir or ".", "dataset"))
    return {"datasets": [{"subsets": [{"image_dir": image_dir, "caption_extension": ".txt"}]}]}


def read_caption(image_path: str, subset: Subset) -> str:
    path = os.path.splitext(image_path)[0] + subset.caption_extension
    if not os.path.isfile(path):
        return subset.class_tokens or ""
    with open(path, encoding="utf-8") as f:
        lines = f.read().strip().splitlines()
    return lines[0].strip() if lines else ""


def add_subset(dataset: BaseDataset, subset: Subset) -> None:
    """Add the pictures of a folder, in the order of their names."""
    if not os.path.isdir(subset.image_dir):
        logger.warning("not directory: %s", subset.image_dir)
        return
    paths = sorted(glob.glob(os.path.join(glob.escape(subset.image_dir), "*")))
    for path in (p for p in paths if p.lower().endswith(IMAGE_EXTENSIONS)):
        path = os.path.abspath(path)
        info = ImageInfo(path, subset.num_repeats, read_caption(path, subset), False, path)
        dataset.image_data[path] = info
        dataset.image_to_subset[path] = subset
    dataset.subsets.append(subset)


def shrunk(reso: Size) -> Size:
    """Halve a resolution meant for the real model until a step takes this one well under a tenth of a second."""
    while min(reso) > MAX_RESOLUTION:
        reso = (reso[0] // 2, reso[1] // 2)
    return reso


def make_dataset(config: dict[str, Any], general: dict[str, Any], args: argparse.Namespace) -> BaseDataset:
    """Make one dataset; a key of the subset goes before one of the dataset, then [general], then the flags."""

    def lookup(key: str, default: Any) -> Any:
        return config.get(key, general.get(key, default))

    resolution = lookup("resolution", args.resolution or 128)
    if isinstance(resolution, str):
        resolution = [int(r) for r in resolution.split(",")]
    reso = (resolution, resolution) if isinstance(resolution, int) else (resolution[0], resolution[-1])
    asked, reso = reso, shrunk(reso)
    if reso != asked:
        logger.info("the miniature trains at %s instead of %s", reso, asked)
    # sizes below FLUX's are what this model is made for, so the steps and limits shrink with them
    steps = min(lookup("bucket_reso_steps", args.bucket_reso_steps), 16 * max(1, min(reso) // 64))
    min_size = min(lookup("min_bucket_reso", args.min_bucket_reso), min(reso) // 2 // steps * steps or steps)
    max_size = max(lookup("max_bucket_reso", args.max_bucket_reso), max(reso))
    bucket_manager = BucketManager(lookup("bucket_no_upscale", False), reso, min_size, max_size, steps)
    if lookup("enable_bucket", args.enable_bucket):
        bucket_manager.make_buckets()

    dataset = BaseDataset(lookup("batch_size", args.train_batch_size), args.seed, bucket_manager)
    flags = {"caption_extension", "keep_tokens", "shuffle_caption", "caption_dropout_rate", "flip_aug", "alpha_mask"}
    shared = {name: lookup(name, getattr(args, name)) for name in flags}
    for subset_config in config.get("subsets", []):
        known = {key: value for key, value in subset_config.items() if key in Subset.__dataclass_fields__}
        add_subset(dataset, Subset(**{**shared, **known}))
    dataset.make_buckets()
    return dataset


def generate_dataset_group(args: argparse.Namespace) -> tuple[DatasetGroup, DatasetGroup | None]:
    """Make the training group; there is never a validation group here."""
    if args.dataset_config is not None:
        logger.info("Loading dataset config from %s", args.dataset_config)
        user_config = load_user_config(args.dataset_config)
    else:
        user_config = drawn_config(args)
    general = user_config.get("general", {})
    datasets = [make_dataset(config, general, args) for config in user_config.get("datasets", [])]
    for i, dataset in enumerate(datasets):
        manager = dataset.bucket_manager
        sizes = ", ".join(f"{reso}: {len(bucket)}" for reso, bucket in zip(manager.resos, manager.buckets, strict=True))
        logger.info(
            "[Dataset %d] %d images, batch size %d, buckets %s", i, len(dataset.image_data), dataset.batch_size, sizes
        )
    return DatasetGroup(datasets), None
