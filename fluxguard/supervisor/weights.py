"""Final weights: a training is finished only when they are new, parse, and hold nothing but finite numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_HEADER_LENGTH = 8
_CHUNK = 1 << 22  # elements looked at together, so that large weights do not swell the supervisor


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found in a weights file."""

    verified: bool
    reason: str
    """Why it does not verify, in words; how much was verified otherwise."""


def verify(path: Path, *, newer_than: float) -> Verdict:
    """Return whether `path` holds weights written after `newer_than` (seconds since the epoch), whole and finite."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return Verdict(verified=False, reason=f"{path.name}: only .safetensors can be verified")
    try:
        modified = path.stat().st_mtime
        if modified < newer_than:
            return Verdict(verified=False, reason=f"{path.name} is older than the run: it was not written by it")
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
    except FileNotFoundError:
        return Verdict(verified=False, reason=f"{path.name} was not written")
    except (SafetensorError, OSError) as error:
        return Verdict(verified=False, reason=f"{path.name} does not parse ({error})")
    if not names:
        return Verdict(verified=False, reason=f"{path.name} holds no tensors")
    return _finite(path)


def _finite(path: Path) -> Verdict:
    header, start = _header(path)
    count = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        bad = _not_finite(path, tensor["dtype"], start + begin, end - begin)
        if bad is None:
            return Verdict(verified=False, reason=f"{path.name}: {name} is of an unknown type ({tensor['dtype']})")
        if bad:
            return Verdict(verified=False, reason=f"{path.name}: {name} holds {bad} values that are not finite")
        count += 1
    return Verdict(verified=True, reason=f"{count} tensors, all finite")


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH), "little")
        return json.loads(file.read(length)), _HEADER_LENGTH + length


# numpy has no bfloat16 and no 8-bit floats: (storage type, mask of the bits that are all ones in Inf and NaN).
_BITS = {"BF16": ("u2", 0x7F80), "F8_E5M2": ("u1", 0x7C)}
_NAN_ONLY = {"F8_E4M3": ("u1", 0x7F)}  # e4m3fn has no Inf; its only NaN has all of these bits set
_FLOATS = {"F64": "f8", "F32": "f4", "F16": "f2"}
_WHOLE = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}


def _not_finite(path: Path, dtype: str, start: int, size: int) -> int | None:
    """Return how many values are not finite, or None for an unknown type."""
    import numpy as np

    if dtype in _WHOLE or size == 0:
        return 0
    masked = {**_BITS, **_NAN_ONLY}.get(dtype)
    storage = masked[0] if masked else _FLOATS.get(dtype)
    if storage is None:
        return None
    kind = np.dtype("<" + storage)
    bad = 0
    with path.open("rb") as file:
        file.seek(start)
        left = size // kind.itemsize
        while left > 0:
            values = np.fromfile(file, dtype=kind, count=min(left, _CHUNK))
            if values.size == 0:
                return 1  # cut short after the header was read
            bad += _count_bad(values, masked[1] if masked else None)
            left -= values.size
    return bad


def _count_bad(values: np.ndarray[Any, Any], mask: int | None) -> int:
    import numpy as np

    if mask is None:
        return int(np.count_nonzero(~np.isfinite(values)))
    return int(np.count_nonzero((values & mask) == mask))
