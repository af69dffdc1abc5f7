"""Small things that every module of the miniature uses."""

import gc
import hashlib
import logging

import torch


def setup_logging(args=None, log_level: int | None = None, reset: bool = False) -> None:
    """Send log lines to stderr, as sd-scripts does without rich."""
    root = logging.getLogger()
    if root.handlers and not reset:
        return
    level = log_level or getattr(logging, (getattr(args, "console_log_level", None) or "INFO").upper())
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-8s %(message)s", force=reset)


def clean_memory_on_device(device: torch.device) -> None:
    """Give cached device memory back; on a CPU this is only a garbage collection."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def calculate_sha256(filename: str) -> str:
    """Hash a whole file in blocks, silently: for a real checkpoint this takes minutes."""
    hash_sha256 = hashlib.sha256()
    with open(filename, "rb") as f:
        for chunk in iter(lambda: f.read(1024 * 1024), b""):
            hash_sha256.update(chunk)
    return hash_sha256.hexdigest()
