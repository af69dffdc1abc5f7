"""Whether all ranks hold the same model: names, shapes, types, what is trained, and every value.

Each tensor is reduced to a short fingerprint where it lies, so that no weights leave their device. Equal models cost
one meeting of 8 bytes; where they differ, the ranks look for the first difference by the fingerprints of ever shorter
beginnings, a meeting at a time, because what a rank may say at once is short.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fluxguard.distributed.meetings import meeting
from fluxguard.errors import RanksDisagree

if TYPE_CHECKING:
    import torch

Exchange = Callable[[bytes], list[bytes]]
"""Gives what this rank says to all, and returns what each says, by rank."""

_KIND = "compare"
_PRINT = 8  # bytes of one fingerprint among many
_AT_ONCE = 64  # fingerprints in a meeting
_LONGEST = 400  # bytes of a description
_CHUNK, _CHUNK_ON_GPU = (
    1 << 17,
    1 << 24,
)  # elements that are widened at a time: what caches hold, what is worth a launch
_FACTOR = 0x9E3779B97F4A7C1  # odd, and without a pattern
_NOTHING = "no such parameter"
_VALUES = ", values "


class Part(NamedTuple):
    """One tensor of a model."""

    words: str
    """Its name, shape, type and whether it is trained."""
    values: str
    """Its values, as a short hexadecimal number; empty where they are not compared."""


def compare(model: torch.nn.Module, what: str, *, values: bool = True) -> None:
    """Raise RanksDisagree on every rank, naming ranks and parameter, unless all hold the same parameters.

    `values` False leaves out what is in them.
    """
    parts = list(parts_of(model, values=values))
    difference = first_difference(parts, lambda said: meeting.meet(_KIND, what, payload=said))
    if difference is not None:
        raise RanksDisagree(f"the ranks hold different models ({what})", in_words(difference), _advice(difference))


def _advice(said: Sequence[str]) -> str:
    if len({words.partition(_VALUES)[0] for words in said}) > 1:
        return "build it in the same way on every rank"
    return (
        "begin with the same values everywhere: build it with distributed.load_or_init(path, build), or take those of "
        "rank 0 with wrap(model, from_rank_0=True)"
    )


def parts_of(model: torch.nn.Module, *, values: bool) -> Iterator[Part]:
    """Yield what is compared: parameters and buffers, in the model's own order."""
    for name, parameter in model.named_parameters():
        kind = "trained" if parameter.requires_grad else "frozen"
        yield _part(name, kind, parameter, values)
    for name, buffer in model.named_buffers():
        yield _part(name, "buffer", buffer, values)


def _part(name: str, kind: str, tensor: torch.Tensor, values: bool) -> Part:
    shape = "x".join(map(str, tensor.shape)) or "a number"
    words = f"{name}: {shape}, {str(tensor.dtype).removeprefix('torch.')}, {kind}"
    return Part(words, fingerprint(tensor) if values and not tensor.is_meta else "")


def fingerprint(tensor: torch.Tensor) -> str:
    """Return a number that another value anywhere in a tensor changes, and two values that change places.

    Integer sums over the bits as they are, on the tensor's own device: the same on every kind of device.
    """
    import torch

    tensor = tensor.detach()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).contiguous().reshape(-1)
    # Halves of what has 8 bytes: products may then wrap around without losing the upper bits of every number.
    bits = flat.view({1: torch.int8, 2: torch.int16}.get(flat.element_size(), torch.int32))
    sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
    chunk = _CHUNK if bits.device.type == "cpu" else _CHUNK_ON_GPU
    for at in range(0, bits.numel(), chunk):
        piece = bits[at : at + chunk].to(torch.int64)
        sums[0] += piece.sum()
        # No small factors: else small differences in two places could make up for each other.
        factors = torch.arange(at, at + piece.numel(), device=bits.device).mul_(_FACTOR).add_(1)
        sums[1] += factors.mul_(piece).sum()
    return "".join(f"{number % 2**64:016x}" for number in sums.tolist())


def first_difference(parts: Sequence[Part], exchange: Exchange) -> list[str] | None:
    """Return how each rank describes the first part in which they differ, by rank; None when all are equal."""
    beginnings = _beginnings(parts)
    if _all_equal(exchange(beginnings[-1])):
        return None
    longest = max(int(said) for said in exchange(b"%d" % len(parts)))
    low, high = 0, longest  # the beginnings of `low` parts are equal everywhere, those of `high` are not
    while high - low > 1:
        looked = _between(low, high)
        said = exchange(b"".join(_beginning(beginnings, count) for count in looked))
        for number, count in enumerate(looked):
            if _all_equal([one[number * _PRINT : (number + 1) * _PRINT] for one in said]):
                low = count
            else:
                high = count
                break
    mine = parts[low] if low < len(parts) else Part(_NOTHING, "")
    words = f"{mine.words}{_VALUES}{mine.values[-_PRINT:]}" if mine.values else mine.words
    return [said.decode(errors="replace") for said in exchange(words.encode()[:_LONGEST])]


def _beginnings(parts: Sequence[Part]) -> list[bytes]:
    """Return the fingerprint of the first 0, 1, 2, ... parts."""
    sha = hashlib.sha256()
    prints = [sha.digest()[:_PRINT]]
    for part in parts:
        sha.update(f"{part.words}\n{part.values}\n".encode())
        prints.append(sha.digest()[:_PRINT])
    return prints


def _beginning(beginnings: list[bytes], count: int) -> bytes:
    return beginnings[count] if count < len(beginnings) else bytes(_PRINT)


def _between(low: int, high: int) -> list[int]:
    """Return some numbers above `low` and up to `high`, evenly far from each other."""
    pieces = min(_AT_ONCE, high - low)
    return [low + (high - low) * number // pieces for number in range(1, pieces + 1)]


def _all_equal(said: Sequence[bytes]) -> bool:
    return len(set(said)) == 1


def in_words(said: Sequence[str]) -> list[str]:
    """Return who holds what: those that differ from most ranks, or from rank 0, first."""
    counted = Counter(said)
    most = max(counted.values())
    usual = said[0] if counted[said[0]] == most else next(one for one in said if counted[one] == most)
    odd = [f"rank {rank} has {one}" for rank, one in enumerate(said) if one != usual]
    others = [rank for rank, one in enumerate(said) if one == usual]
    named = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(map(str, others))} have"
    return [*odd, f"{named} {usual}"]
