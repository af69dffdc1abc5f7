"""Tensors in safetensors files: what they are called, of which shape, and whether every number in them is finite.

Read by hand and strictly: a header is believed only when its tensors fill the file without a hole or an overlap.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from fluxguard.manifest import once

if TYPE_CHECKING:
    import numpy as np

_LENGTH = 8  # bytes in front of the header, which hold its length
_LONGEST_HEADER = 64 << 20
_MANY = 1 << 62  # more bytes than any file has
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
_FINITE: Mapping[str, tuple[int, int]] = {
    "F64": (8, 0x7FF0_0000_0000_0000),
    "F32": (4, 0x7F80_0000),
    "C64": (4, 0x7F80_0000),
    "F16": (2, 0x7C00),
    "BF16": (2, 0x7F80),
    "F8_E5M2": (1, 0x7C),
    "F8_E4M3": (1, 0x7F),  # no Inf in it; its only NaN has all of these bits set
}
"""By type: the bytes of a number, and the least that its bits are, the sign left out, when it is not finite."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """As safetensors calls it: F32, BF16, ..."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes in the file."""
    end: int


class NotFinite(ValueError):
    """Raised when a tensor holds NaN or Inf."""


def header(file: BinaryIO) -> tuple[Tensor, ...]:
    """Return the tensors of a safetensors file in the order of their bytes, its own position wherever.

    Raises ValueError saying what is wrong with it, and OSError.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(_exactly(file, _LENGTH), "little")
    if length > min(size - _LENGTH, _LONGEST_HEADER):
        raise ValueError(f"is broken (a header of {length} bytes in a file of {size})")
    try:
        table = json.loads(_exactly(file, length), object_pairs_hook=once)
        found = [_tensor(name, entry, _LENGTH + length) for name, entry in table.items() if name != "__metadata__"]
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"is broken (its header: {error or type(error).__name__})") from None
    found.sort(key=lambda tensor: (tensor.start, tensor.end))
    at = _LENGTH + length
    for tensor in found:
        if tensor.start != at:
            raise ValueError(f"is broken ({tensor.name} begins at byte {tensor.start}, not at {at})")
        at = tensor.end
    if at != size:
        raise ValueError(f"is broken (its tensors end at byte {at}, the file at {size})")
    return tuple(found)


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    if len(data) < count:
        raise ValueError("is broken (cut short)")
    return data


def _tensor(name: str, entry: Mapping[str, Any], base: int) -> Tensor:
    dtype, shape = entry["dtype"], entry["shape"]
    begin, end = entry["data_offsets"]
    if dtype not in _BITS:
        raise ValueError(f"{name} is of an unknown type ({dtype})")
    if any(type(number) is not int or not 0 <= number < _MANY for number in (begin, end, *shape)):
        raise ValueError(f"the numbers of {name}")
    if set(entry) != {"dtype", "shape", "data_offsets"} or end - begin != math.prod(shape) * (_BITS[dtype] // 8):
        raise ValueError(f"the size of {name}")
    return Tensor(name, dtype, tuple(shape), base + begin, base + end)


def network(tensors: tuple[Tensor, ...]) -> str:
    """Return what two files have in common exactly when they hold the same network: names, shapes and types."""
    listed = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


class Finite:
    """Looks at the bytes of a file as they are read, in order, and raises NotFinite at the first NaN or Inf."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.dtype in _FINITE and tensor.end > tensor.start]
        self._spans = self._joined()
        self._left = b""
        """The beginning of a number whose rest comes with the next piece."""

    def _joined(self) -> list[tuple[int, int, str]]:
        """Return (start, end, type) of neighbours of one type, last first: many small tensors are looked at at once."""
        spans: list[tuple[int, int, str]] = []
        for tensor in self._tensors:
            if spans and spans[-1][1:] == (tensor.start, tensor.dtype):
                spans[-1] = (spans[-1][0], tensor.end, tensor.dtype)
            else:
                spans.append((tensor.start, tensor.end, tensor.dtype))
        return spans[::-1]

    def look(self, offset: int, data: memoryview) -> None:
        """Look at `data`, which begins at byte `offset` of the file."""
        end = offset + len(data)
        while self._spans and self._spans[-1][0] < end:
            start, stop, dtype = self._spans[-1]
            first = max(start, offset)
            self._part(dtype, first, data[first - offset : min(stop, end) - offset])
            if stop > end:
                return
            self._spans.pop()

    def _part(self, dtype: str, at: int, data: memoryview) -> None:
        import numpy as np

        width = _FINITE[dtype][0]
        kind = np.dtype(f"<u{width}")
        if self._left:
            missing = width - len(self._left)
            whole = self._left + bytes(data[:missing])
            self._numbers(dtype, at - len(self._left), np.frombuffer(whole, kind))
            at, data, self._left = at + missing, data[missing:], b""
        usable = len(data) - len(data) % width
        self._numbers(dtype, at, np.frombuffer(data[:usable], kind))
        self._left = bytes(data[usable:])

    def _numbers(self, dtype: str, at: int, values: np.ndarray[Any, Any]) -> None:
        """Look at whole numbers: as bits without a sign the negative ones are the largest, with one the positive."""
        width, least = _FINITE[dtype]
        sign = 1 << (8 * width - 1)
        if values.size and (values.max() >= least | sign or values.view(f"<i{width}").max() >= least):
            bad = int(((values & values.dtype.type(sign - 1)) >= least).argmax())
            raise NotFinite(f"holds a number that is not finite in {self._at(at + bad * width)}")

    def _at(self, offset: int) -> str:
        return next(tensor.name for tensor in self._tensors if tensor.start <= offset < tensor.end)
