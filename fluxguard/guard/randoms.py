"""The random states of a process, of every source that a training draws from, as plain values."""

from __future__ import annotations

import base64
import random
from typing import Any

States = dict[str, Any]
"""Random states as plain values, as JSON holds them."""


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


def packed(state: Any) -> str:
    """Return a generator's state as text."""
    return base64.b64encode(bytes(state.tolist())).decode()


def tensor(text: str) -> Any:
    """Return the state that `packed` made a text of."""
    import torch

    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
