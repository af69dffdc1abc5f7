"""What a trainer keeps between two attempts, as tensors and plain values: written and read without pickle."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxguard.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

TENSORS, VALUES = ".safetensors", ".json"

_TENSOR, _TUPLE, _TABLE, _COUNTER, _NUMBER = "$tensor", "$tuple", "$table", "$counter", "$number"
_DEEPEST = 50


def text_of(values: Mapping[str, Any], place: str, tensors: dict[str, Tensor] | None = None) -> str:
    """Return values as text, their tensors put into `tensors`; without that a tensor is an InputError, too."""
    found: dict[str, Tensor] = {} if tensors is None else tensors
    text = json.dumps(_packed(values, place, found, 0), indent=1)
    if tensors is None and found:
        raise InputError(place, "holds a tensor, where only plain values can be")
    return text


def values_of(text: str | bytes) -> dict[str, Any]:
    """Return what `text_of` made a text of, where no tensors are. Raises ValueError."""
    values: dict[str, Any] = _unpacked(json.loads(text), {})
    return values


def write(stem: Path, values: Mapping[str, Any]) -> None:
    """Write `values` into two files called `stem` and .safetensors or .json.

    They may hold tensors, numbers, texts, None, and lists, tuples and dicts of these, as state_dicts do. Raises
    InputError naming the place of anything else, before anything is written.
    """
    import safetensors.torch

    tensors: dict[str, Tensor] = {}
    text = text_of(values, stem.name, tensors)
    safetensors.torch.save_file(separate(tensors.items()), stem.with_name(stem.name + TENSORS))
    stem.with_name(stem.name + VALUES).write_text(text, encoding="utf-8")


def read(stem: Path) -> dict[str, Any]:
    """Return what `write` wrote, tensors on the CPU. Raises OSError, ValueError or safetensors' own error."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(stem.with_name(stem.name + TENSORS))
    values = json.loads(stem.with_name(stem.name + VALUES).read_bytes())
    unpacked: dict[str, Any] = _unpacked(values, tensors)
    return unpacked


def separate(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: on the CPU, in one piece, none in the memory of another."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors:
        here = tensor.detach().cpu().contiguous()
        place = here.untyped_storage().data_ptr()
        whole = here.untyped_storage().nbytes() == here.numel() * here.element_size()
        out[name] = here if whole and place not in seen else here.clone()
        seen.add(place)
    return out


def _packed(value: Any, place: str, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > _DEEPEST:
        raise InputError(place, "holds itself, or is nested too deeply")
    if hasattr(value, "untyped_storage"):
        number = str(len(tensors))
        tensors[number] = value
        return {_TENSOR: number}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NUMBER: repr(value)}
    if isinstance(value, Mapping):
        if not isinstance(value, Counter) and all(isinstance(key, str) and key[:1] != "$" for key in value):
            return {key: _packed(one, f"{place}.{key}", tensors, depth + 1) for key, one in value.items()}
        pairs = [(_key(key, place), _packed(one, f"{place}.{key}", tensors, depth + 1)) for key, one in value.items()]
        return {_COUNTER if isinstance(value, Counter) else _TABLE: pairs}
    if isinstance(value, (list, tuple)):
        inner = [_packed(one, f"{place}[{number}]", tensors, depth + 1) for number, one in enumerate(value)]
        return inner if isinstance(value, list) else {_TUPLE: inner}
    raise InputError(place, f"is of type {type(value).__name__}: a state holds tensors and plain values only")


def _key(key: Any, place: str) -> Any:
    if not isinstance(key, (str, int)):
        raise InputError(place, f"has a key of type {type(key).__name__}: a state takes texts and whole numbers")
    return key


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == _TENSOR:
            return tensors[inner]
        if kind == _TUPLE:
            return tuple(_unpacked(one, tensors) for one in inner)
        if kind in (_TABLE, _COUNTER):
            table = {key: _unpacked(one, tensors) for key, one in inner}
            return Counter(table) if kind == _COUNTER else table
        if kind == _NUMBER:
            return float(inner)
    return {key: _unpacked(one, tensors) for key, one in value.items()}
