"""What the guard costs a training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.bench.measure import MEMORY, Figures, Row, environment, named, own_figures, supervised

SHARE = 100.0
BLOCKS = 57
SWAPPING = 1.0
"""A step in which blocks are swapped takes seconds: gigabytes cross the bus, and none as short as 50 ms swaps."""
_NVRX, _TORCHFT, _FILE_TIMER = "nvidia-resiliency-ext", "torchft", "torch FileTimer"


def rows(others: Mapping[str, Figures]) -> list[Row]:
    """Measure the cost of each call, and of all calls of a step together."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        env = environment(supervised(Path(name)))
        costs = own_figures("costs", env)
        step = own_figures("steps", env)

    def peers(figure: str, *prefixes: str) -> str:
        chosen = [(peer, told.get(figure)) for peer, told in others.items() if peer.startswith(prefixes)]
        return named(chosen)

    plain = f"future.result() {costs['plain result']:.2f}"
    parts = ", ".join(f"{name} {step[name]:.0f}" for name in ("batch", "blocks", "end"))
    return [
        Row(
            "beat",
            costs["beat"],
            "us",
            1.0,
            peers=f"{peers('beat', _NVRX)} (step(...) as a patched trainer calls it: {costs['step']:.2f})".strip(),
        ),
        Row("phase, entered and left", costs["phase"], "us", 3.0, peers=peers("phase", _NVRX)),
        Row(
            "fail_after, entered and left", costs["fail_after"], "us", 5.0, peers=peers("scope", _TORCHFT, _FILE_TIMER)
        ),
        Row("result of a done future", costs["result"], "us", 2.0, peers=", ".join((plain, peers("result", _TORCHFT)))),
        Row("guarded read of a cache over a plain one", costs["read"], "us", 20.0),
        Row("the same on another thread", costs["read elsewhere"], "us", 80.0),
        Row(
            "guard in a step of 50 ms",
            SHARE * (step["batch"] + step["end"]) / step["step"],
            "%",
            0.1,
            peers=f"(us: {parts}; noise {step['noise']:.0f}, the step itself scatters by {step['scatter']:.0f})",
        ),
        Row(f"{BLOCKS} block swaps in a step of {SWAPPING:g} s", SHARE * step["blocks"] / (SWAPPING * 1e6), "%", 0.1),
    ]
