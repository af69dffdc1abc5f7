"""Runs that make no progress: by the wait that is open, else by the phase that they are in."""

from __future__ import annotations

import re

from fluxguard.launch.remedies import NO_SAMPLING
from fluxguard.supervisor.causes.cause import Cause, Told, says, waits

_PHASES = {
    "load": ("loading the models", "Look at the disk that holds the models, and at the free memory of the machine."),
    "tokenizers": ("loading the tokenizers", "They are asked for on the hub at each start: set --tokenizer_cache_dir."),
    "accelerator": (
        "setting up accelerate",
        "With several ranks one did not come; with wandb its server did not answer.",
    ),
    "cast": ("converting the model to fp8", "Use a model file that is fp8 already, and look at the free memory."),
    "latent cache": ("caching latents", "Look at the disk that holds the images, and whether the GPU is used at all."),
    "text cache": ("caching text encoder outputs", "On a processor T5 takes long: use a GPU, or an fp8 t5xxl."),
    "prepare": ("preparing the models", "Look at the free memory of the machine and of the GPU."),
    "resume": ("loading the state", "Look at the disk or share that holds the state."),
    "hash": ("hashing the base model", "The whole file is read: look at the disk that holds it."),
    "trackers": ("starting the trackers", "wandb asks its server: log in before, or set WANDB_MODE=offline."),
    "first step": ("the first step", "Look at the GPU's memory: one that spilled to RAM takes hours for a step."),
    "step": ("training", "If it comes again, swap fewer blocks, use fewer workers, and update the GPU driver."),
    "validation": ("validating", "Validate less often, or not at all."),
    "sampling": ("making sample images", "Take the sample images out (--sample_every_n_epochs)."),
    "saving": ("saving", "Look at the disk or share that the training saves to."),
    "on main": ("rank 0 works alone", "Look at what rank 0 does in that place: it beats with fluxguard.progress()."),
    "upload": ("uploading", "Take the upload out of the command, and upload by hand."),
    "ending": ("finishing", "Trackers finish here: set WANDB_MODE=offline. The weights are mostly saved."),
}
_REMEDIES = {"sampling": (NO_SAMPLING,)}

_BY_WAIT = (
    Cause(
        name="block swap",
        words="The step waits for a block swap that does not come back.",
        advice="If it comes again: update the GPU driver, or swap fewer blocks (--blocks_to_swap).",
        fixed=True,
        shown=(
            Told(
                "block swap",
                "A block swap never came back: the step waited {waited:.1f} s for a block of weights (limit"
                " {limit:g} s).",
            ),
            waits(
                "a wait for a block is open, or a stack stands in `_wait_blocks_move`",
                r"^block swap",
                "_wait_blocks_move",
                "wait_blocks_move",
                "wait_for_blocks_move",
            ),
            says(
                r"^fluxguard: block swap.*did not finish within.*|DeadlineExceeded: block swap.*",
                "fluxguard: block swap did not finish within 30 s; this process ends with code 75, another"
                " attempt may pass",
            ),
        ),
    ),
    Cause(
        name="sampling",
        words="A sample image does not come to an end.",
        advice=_PHASES["sampling"][1],
        remedies=(NO_SAMPLING,),
        fixed=True,
        shown=(
            Told("sampling", "A sample image took longer than it may (limit {limit:g} s)."),
            waits(
                "a wait for a sample image is open, or a stack stands in the sampling",
                r"^sampling an image",
                "sample_image_inference",
                "sample_images_common",
            ),
            says(
                r"DeadlineExceeded: sampling an image.*",
                "fluxguard.errors.DeadlineExceeded: sampling an image did not finish within 1800 s",
            ),
        ),
    ),
    Cause(
        name="saving",
        words="Saving does not end.",
        advice=_PHASES["saving"][1],
        fixed=True,
        shown=(
            waits(
                "a stack stands in a save",
                r"^saving",
                "save_state",
                "save_file",
                "save_model",
                "save_weights",
                "save_accelerator_state",
            ),
        ),
    ),
    Cause(
        name="cache read",
        words="Reading a cache file does not end.",
        advice="Look at the disk or network share that holds the images and their .npz files.",
        fixed=True,
        shown=(
            waits(
                "a stack stands in a function that reads cache files",
                "",
                "load_latents_from_disk",
                "_default_load_latents_from_disk",
                "load_outputs_npz",
                "is_disk_cached_outputs_expected",
                "_default_is_disk_cached_latents_expected",
                "is_disk_cached_latents_is_expected",
            ),
        ),
    ),
    Cause(
        name="tracker",
        words="A tracker (wandb or tensorboard) does not answer.",
        advice="Set WANDB_MODE=offline, or take --log_with out.",
        fixed=True,
        shown=(waits("a stack stands in a tracker's start or end", "", "init_trackers", "end_training"),),
    ),
    Cause(
        name="wait",
        words="A wait took longer than it may: {said}",
        advice="The stacks of its processes are in the report.",
        fixed=True,
        shown=(
            Told("wait", "{what} took longer than it may (limit {limit:g} s)."),
            says(
                r"^fluxguard: .*did not finish within.*|DeadlineExceeded: .*",
                "fluxguard: asking git did not finish within 60 s; this process ends with code 75, another"
                " attempt may pass",
                echo=True,
            ),
            waits("any other wait that the trainer said it began is past its limit", r"."),
        ),
    ),
)

CAUSES = _BY_WAIT + tuple(
    Cause(
        name=f"no progress ({phase})",
        words=f"The training made no progress while {doing}.",
        advice=advice,
        remedies=_REMEDIES.get(phase, ()),
        sure=False,
        shown=(waits(f"the phase '{phase}' passed its limit, and nothing better is known"),),
    )
    for phase, (doing, advice) in _PHASES.items()
)

_IN_BRACKETS = re.compile(r" ?\((?:[^()]* )?--\w[^()]*\)")
_THEIRS = re.compile(r"--\w+_\w+|\bblocks\b|\bT5\b|t5xxl|apply-patches")
_FOREIGN = "The stacks of its processes and the last lines of its output are in the report."


def for_foreign(advice: str) -> str:
    """Return the sentences of an advice that hold for any trainer: without the flags and the parts of sd-scripts."""
    sentences = re.split(r"(?<=[.;]) ", _IN_BRACKETS.sub("", advice))
    return " ".join(one for one in sentences if not _THEIRS.search(one)) or (advice and _FOREIGN)
