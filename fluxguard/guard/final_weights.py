"""The weights that a training leaves at its end: where they lie, and whether they are whole."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from fluxguard import manifest

_HEADER_LENGTH = 8
_LONGEST_HEADER = 1 << 27


def path(args: Any) -> Path:
    """Return where a trainer with these arguments leaves its final weights."""
    kind = getattr(args, "save_model_as", None) or "safetensors"
    return Path(args.output_dir) / f"{args.output_name or 'last'}.{kind}"


def written(weights: Path, state: Path) -> bool:
    """Return whether the final weights are whole and were written after `state`, of which they are the end."""
    try:
        # The manifest may be younger: a supervisor seals states that have none.
        saved = max(entry.stat().st_mtime for entry in state.iterdir() if entry.name != manifest.NAME)
        return weights.stat().st_mtime >= saved and _whole(weights)
    except (OSError, ValueError):
        return False


def _whole(weights: Path) -> bool:
    if weights.suffix != ".safetensors":
        return zipfile.is_zipfile(weights)
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH), "little")
        if not 0 < length <= _LONGEST_HEADER:
            return False
        header = json.loads(file.read(length))
        size = os.fstat(file.fileno()).st_size
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return size == _HEADER_LENGTH + length + max(ends, default=0)
