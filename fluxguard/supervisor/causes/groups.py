"""The 16 groups of what users meet, how each ends under fluxguard, and by which cause; tests play every row."""

from __future__ import annotations

GROUPS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "A1",
        "stuck before the first step, GPU idle",
        "finished",
        "no progress (latent cache)",
        "ends it by the patience of the phase, with the stacks in the report, and starts it again",
    ),
    (
        "A2",
        "stuck at step 0 or 1, GPU busy",
        "finished",
        "no progress (first step)",
        "ends it by the ceiling of the phase, whatever the GPU does; low power and a full GPU are named",
    ),
    (
        "A3",
        "a loader worker delivers nothing",
        "finished",
        "loader worker stopped",
        "hardened: replaces the worker in place; else ends all processes and resumes from the newest good state",
    ),
    (
        "A4",
        "ranks wait for one that does not come",
        "finished",
        "barrier",
        "names the wait (hardened: the rank too), ends all ranks and resumes",
    ),
    (
        "B1",
        "dies silently: system memory",
        "stopped",
        "system memory full",
        "says so by the kernel's own count, and what to change; another attempt would need as much",
    ),
    (
        "B2",
        "CUDA out of memory",
        "stopped",
        "GPU memory full",
        "tries without sample images and with more blocks swapped where that can help, then stops with advice",
    ),
    (
        "B3",
        "crashes by arguments or versions",
        "stopped",
        "bad argument",
        "stops after one attempt with the trainer's own words and what to change",
    ),
    (
        "C1",
        "the page or terminal is closed",
        "finished",
        "-",
        "the trainer does not belong to either: it goes on, and the next supervisor takes over",
    ),
    (
        "C2",
        "no stop, or one that leaves processes",
        "stopped",
        "-",
        "ends every process of the run, also those that ignore SIGTERM, are stopped, or left the tree",
    ),
    (
        "D1",
        "resume dies by KeyError 'step'",
        "finished",
        "broken state",
        "sets the state aside from which the trainer could not go on, and takes the one before",
    ),
    (
        "D2",
        "resumed twice, counts wrong",
        "finished",
        "killed from outside (SIGKILL)",
        "counts the true steps itself: each planned step is trained once, however often it is resumed",
    ),
    (
        "D3",
        "resume from a wrong path",
        "refused",
        "-",
        "says before the start that it chooses the state itself, among those that verify",
    ),
    (
        "D4",
        "a state or cache is torn",
        "finished",
        "-",
        "verifies every file of a state before it is used; sets a broken cache file aside, so that it is made anew",
    ),
    (
        "E",
        "a model download stops",
        "finished",
        "download stuck",
        "ends it by the patience of loading, and starts it again; downloads go on where they were",
    ),
    (
        "F",
        "the loss is NaN, the LoRA useless",
        "stopped",
        "weights not finite",
        "hardened: stops at the first run of bad losses, with the last good state; always: weights with NaN are"
        " no success",
    ),
    (
        "G",
        "slow caching that looks like a hang",
        "finished",
        "-",
        "nothing: each image that is cached is progress",
    ),
)
"""(group, what you see, how it ends, the cause or `-`, what fluxguard does)."""
