"""The random states of a process, of every source that a training draws from, as plain values."""

from __future__ import annotations

import array
import base64
import random
import sys
from typing import Any

States = dict[str, Any]
"""Random states as plain values, as JSON holds them."""

Snapshot = tuple[Any, ...]
"""Random states as plain values, quick to take and to pickle; only for a process of the same kind."""


def random_states() -> States:
    """Return the random states of this process."""
    import numpy
    import torch

    version, inner, gauss = random.getstate()
    legacy: Any = numpy.random.get_state()
    name, keys, at, has_gauss, cached = legacy
    states: States = {
        "torch": packed(torch.get_rng_state()),
        "python": [version, list(inner), gauss],
        "numpy": [str(name), base64.b64encode(keys.tobytes()).decode(), int(at), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available():
        states["cuda"] = packed(torch.cuda.get_rng_state())
    return states


def restore(states: States) -> None:
    """Set the random states of this process to what `random_states` returned, maybe in another process."""
    import numpy
    import torch

    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
    name, keys, at, has_gauss, cached = states["numpy"]
    words = numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32)
    numpy.random.set_state((name, words, at, has_gauss, cached))
    torch.set_rng_state(tensor(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensor(states["cuda"]))


def snapshot() -> Snapshot:
    """Return the random states of this process as a DataLoader worker draws from them: some tens of microseconds."""
    import torch

    version, words, gauss = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn: Any = None if numpy is None else numpy.random.get_state()
    others = None if drawn is None else (drawn[0], drawn[1].tobytes(), *drawn[2:])
    return version, array.array("I", words).tobytes(), gauss, torch.get_rng_state().numpy().tobytes(), others


def go_on_with(taken: Snapshot) -> None:
    """Set the random states of this process to a snapshot."""
    import torch

    version, words, gauss, drawn, others = taken
    random.setstate((version, tuple(array.array("I", words)), gauss))
    torch.set_rng_state(torch.frombuffer(bytearray(drawn), dtype=torch.uint8))
    if others is not None:
        import numpy

        name, keys, *rest = others
        numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def packed(state: Any) -> str:
    """Return a generator's state as text."""
    return base64.b64encode(bytes(state.tolist())).decode()


def tensor(text: str) -> Any:
    """Return the state that `packed` made a text of."""
    import torch

    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
