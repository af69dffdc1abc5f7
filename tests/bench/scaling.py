"""How a training scales over the ranks of this machine: reported, as it depends on the machine alone."""

from __future__ import annotations

import os

from tests.bench.measure import Row, environment, figures_of, named

WORLDS = (1, 2, 4)


def rows() -> list[Row]:
    """Measure 1, 2 and 4 ranks, as far as there are GPUs; without two GPUs, as far as there are cores."""
    import torch

    cards = torch.cuda.device_count()
    most = cards if cards > 1 else os.cpu_count() or 1
    hidden = {} if cards > 1 else {"CUDA_VISIBLE_DEVICES": ""}
    found = []
    for world in WORLDS:
        if world > most:
            break
        figures = figures_of("ranks_scale", str(world), env=environment(hidden))
        steps = figures.pop("steps")
        told = named([*figures.items()], " % busy") or "gloo on the CPU: no two GPUs here"
        found.append(Row(f"steps of {world} rank{'s' * (world > 1)}", steps, "steps/s", 0.0, "higher", f"({told})"))
    return found
